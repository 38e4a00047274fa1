//! Enums whose variants have numbers that go into messages, digests or files.

/// Defines an enum whose variants have a number, and a name for people where words are given. No number is ever given to something else.
macro_rules! coded_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $word:literal;)+ }) => {
        coded_enum! { $(#[$meta])* pub enum $name { $($(#[$doc])* $variant = $number;)+ } }

        impl $name {
            /// The name for people.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant = $number,)+ }

        impl $name {
            /// Every one, in the order of their numbers.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// The one of this number.
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
