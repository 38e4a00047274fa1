//! Counters by name, declared once.

/// Declares a struct of counters as fields and as named values. Every name has a line of documentation: for people and for
/// exporters it is the counter's identity.
macro_rules! counters {
    ($(#[$about:meta])* $visibility:vis struct $counters:ident {
        $($(#[$doc:meta])* $name:ident,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $counters {
            /// The counters by name, for people and for exporters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

pub(crate) use counters;
