mod flood;
mod life;
mod pair;
