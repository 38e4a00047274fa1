use super::*;

/// Updates of one element with these gradients.
fn after<T: Real + PartialEq + std::fmt::Debug>(optimizer: Optimizer, gradients: &[T]) -> T {
    let (mut p, mut first, mut second) = ([T::of(1.0)], [T::of(0.0)], [T::of(0.0)]);
    for (step, gradient) in (1..).zip(gradients) {
        T::update(optimizer, step, &mut p, &[*gradient], [&mut first, &mut second]);
    }
    p[0]
}

#[test]
fn updates_are_those_of_the_formulas() {
    let gradients = [0.5f64, -2.0, 0.25];
    let [a, b, c] = gradients;
    assert_eq!(after(Optimizer::Sgd { rate: 0.1 }, &gradients), 1.0 - 0.1 * a - 0.1 * b - 0.1 * c);
    let v = [a, 0.9 * a + b, 0.9 * (0.9 * a + b) + c];
    assert_eq!(
        after(Optimizer::Momentum { rate: 0.1, momentum: 0.9 }, &gradients),
        ((1.0 - 0.1 * v[0]) - 0.1 * v[1]) - 0.1 * v[2]
    );
    // The first step of Adagrad goes by the rate, whatever the gradient; so does Adam's.
    assert_eq!(after(Optimizer::Adagrad { rate: 0.1, epsilon: 0.0 }, &[a]), 0.9);
    assert_eq!(after(Optimizer::Adagrad { rate: 0.1, epsilon: 0.0 }, &[3.0f64, 4.0]), 0.9 - 0.1 * 4.0 / 5.0);
    let adam = Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 0.0 };
    assert!((after(adam, &[a]) - 0.9).abs() < 1e-12);
    let (mut m, mut q, mut p) = (0.0, 0.0, 1.0);
    for (step, g) in (1..).zip(gradients) {
        m += (1.0 - 0.9) * (g - m);
        q += (1.0 - 0.999) * (g * g - q);
        p -= 0.1 * (m / (1.0 - 0.9f64.powi(step))) / (q / (1.0 - 0.999f64.powi(step))).sqrt();
    }
    assert!((after(adam, &gradients) - p).abs() < 1e-12);
}

#[test]
fn each_rounds_in_the_type_of_the_parameter() {
    // Fused, the product would not be rounded: 1 + 2^-23 squared has 2^-46 below.
    let g = 1.0 + f32::EPSILON;
    assert_eq!(after(Optimizer::Sgd { rate: f64::from(g) }, &[g]), 1.0 - g * g);
}

#[test]
fn the_rest_of_a_beta_is_rounded_once() {
    assert_ne!((1.0 - 0.999f64) as f32, 1.0 - 0.999f64 as f32);
    let g = 3f32;
    let (m, v) = ((1.0 - 0.9f64) as f32 * g, (1.0 - 0.999f64) as f32 * (g * g));
    let (mean, square) = (m / (1.0 - 0.9f64) as f32, v / (1.0 - 0.999f64) as f32);
    let adam = Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    assert_eq!(after(adam, &[g]), 1.0 - 0.1 * mean / (square.sqrt() + 1e-8));
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let bad = [
        Optimizer::Sgd { rate: f64::NAN },
        Optimizer::Sgd { rate: -0.1 },
        Optimizer::Sgd { rate: f64::INFINITY },
        Optimizer::Momentum { rate: 0.1, momentum: 1.0 },
        Optimizer::Adagrad { rate: 0.1, epsilon: -1.0 },
        Optimizer::Adagrad { rate: 0.1, epsilon: 0.0 },
        Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 0.9, epsilon: 1e-60 },
        Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 1.5, epsilon: 1e-8 },
    ];
    bad.into_iter().for_each(|optimizer| assert!(optimizer.check().is_err(), "{optimizer:?}"));
    assert!(Optimizer::Momentum { rate: 0.0, momentum: 0.0 }.check().is_ok());
}
