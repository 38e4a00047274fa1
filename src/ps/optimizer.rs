//! The updates of parameters from gradients.
//!
//! Each rounds as the plain loop over the elements does, in the parameter's type, without fused multiply-add; so does NumPy.

use serde::{Deserialize, Serialize};

/// How a server updates a parameter from a gradient g. State is zero when the parameter is set, and has an element for each of the
/// parameter's. A gradient of rows updates these rows alone, and the state of them: the other rows' momentum does not decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Optimizer {
    /// p -= rate * g
    Sgd {
        /// The learning rate.
        rate: f64,
    },
    /// v = momentum * v + g; p -= rate * v (as PyTorch's SGD)
    Momentum {
        /// The learning rate.
        rate: f64,
        /// The part of the velocity that stays.
        momentum: f64,
    },
    /// s += g * g; p -= rate * g / (sqrt(s) + epsilon) (Duchi et al., JMLR 12, 2011)
    Adagrad {
        /// The learning rate.
        rate: f64,
        /// Keeps the divisor from zero: above it, as f32 too.
        epsilon: f64,
    },
    /// m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g; with the updates so far, t,
    /// p -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) (Kingma and Ba, ICLR 2015)
    Adam {
        /// The learning rate.
        rate: f64,
        /// The decay of the mean.
        beta1: f64,
        /// The decay of the mean of squares.
        beta2: f64,
        /// Keeps the divisor from zero: above it, as f32 too.
        epsilon: f64,
    },
}

impl Optimizer {
    /// Tensors of state beside the parameter.
    pub(super) fn states(self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } | Self::Adagrad { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// # Errors
    /// The number that cannot be used.
    pub(super) fn check(self) -> Result<(), String> {
        let (rate, parts, epsilon) = match self {
            Self::Sgd { rate } => (rate, [0.0; 2], None),
            Self::Momentum { rate, momentum } => (rate, [momentum, 0.0], None),
            Self::Adagrad { rate, epsilon } => (rate, [0.0; 2], Some(epsilon)),
            Self::Adam { rate, beta1, beta2, epsilon } => (rate, [beta1, beta2], Some(epsilon)),
        };
        let is_part = |part: &f64| (0.0..1.0).contains(part);
        if rate.is_finite()
            && rate >= 0.0
            && parts.iter().all(is_part)
            && epsilon.is_none_or(|epsilon| epsilon.is_finite() && epsilon as f32 > 0.0)
        {
            return Ok(());
        }
        Err(format!(
            "{self:?}: a rate is finite and not negative, an epsilon finite and above 0 (as f32, too), momentum and betas at least 0 and below 1"
        ))
    }
}

/// The types that parameters can have.
pub(super) trait Real: bytemuck::Pod + Send + Sync {
    fn of(value: f64) -> Self;
    fn sum(self, other: Self) -> Self;
    fn divide(self, other: Self) -> Self;
    /// Updates a run of elements; `step` counts from 1.
    fn update(optimizer: Optimizer, step: u64, p: &mut [Self], g: &[Self], states: [&mut [Self]; 2]);
}

macro_rules! real {
    ($($float:ty),*) => { $(
        impl Real for $float {
            fn of(value: f64) -> Self {
                value as $float
            }

            fn sum(self, other: Self) -> Self {
                self + other
            }

            fn divide(self, other: Self) -> Self {
                self / other
            }

            fn update(optimizer: Optimizer, step: u64, p: &mut [Self], g: &[Self], [first, second]: [&mut [Self]; 2]) {
                match optimizer {
                    Optimizer::Sgd { rate } => {
                        let rate = rate as $float;
                        for (p, g) in p.iter_mut().zip(g) {
                            *p -= rate * g;
                        }
                    }
                    Optimizer::Momentum { rate, momentum } => {
                        let (rate, momentum) = (rate as $float, momentum as $float);
                        for ((p, g), v) in p.iter_mut().zip(g).zip(first) {
                            *v = momentum * *v + g;
                            *p -= rate * *v;
                        }
                    }
                    Optimizer::Adagrad { rate, epsilon } => {
                        let (rate, epsilon) = (rate as $float, epsilon as $float);
                        for ((p, g), s) in p.iter_mut().zip(g).zip(first) {
                            *s += g * g;
                            *p -= rate * g / (s.sqrt() + epsilon);
                        }
                    }
                    Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                        let power = |beta: f64| (1.0 - beta.powf(step as f64)) as $float;
                        let (mean, square) = (power(beta1), power(beta2));
                        let (rate, epsilon) = (rate as $float, epsilon as $float);
                        let (rest1, rest2) = ((1.0 - beta1) as $float, (1.0 - beta2) as $float);
                        let (beta1, beta2) = (beta1 as $float, beta2 as $float);
                        for (((p, g), m), v) in p.iter_mut().zip(g).zip(first).zip(second) {
                            *m = beta1 * *m + rest1 * g;
                            *v = beta2 * *v + rest2 * (g * g);
                            *p -= rate * (*m / mean) / ((*v / square).sqrt() + epsilon);
                        }
                    }
                }
            }
        }
    )* };
}

real!(f32, f64);

#[cfg(test)]
mod tests;
