mod flood;
mod life;
mod pair;
mod written;
