//! Learns handwritten digits with a parameter server, then with an all-reduce, and compares the parameters' bits:
//!
//! ```text
//! cargo build --release -p shouter-cli && cargo build --release --example ps_digits
//! target/release/shouter run -n 3 -- target/release/examples/ps_digits --servers 1
//! ```
//!
//! The first ranks serve, the others train a network of one hidden layer.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};

use clap::Parser;
use flate2::read::GzDecoder;
use shouter::ps::{Actors, Array, Client, Optimizer, Plan, Server};
use shouter::{Config, Group, ReduceOp};

const PIXELS: usize = 64;
const HIDDEN: usize = 48;
const DIGITS: usize = 10;
/// Images to train with; the rest are to check.
const TRAINED: usize = 1536;
const BATCH: usize = 64;
const RATE: f32 = 0.3;
/// Names and shapes of the parameters.
const PARAMETERS: [(&str, [u64; 2]); 4] = [
    ("hidden", [PIXELS as u64, HIDDEN as u64]),
    ("hidden bias", [1, HIDDEN as u64]),
    ("out", [HIDDEN as u64, DIGITS as u64]),
    ("out bias", [1, DIGITS as u64]),
];

#[derive(Parser)]
struct Arguments {
    /// Ranks that serve; the others train
    #[arg(long, default_value_t = 1)]
    servers: u32,
    /// Passes over all images
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// The images
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    data: String,
}

/// The parameters, or their gradients.
type Net = [Vec<f32>; 4];
type Images = Vec<([f32; PIXELS], usize)>;

fn images(path: &str) -> Result<Images, Box<dyn Error>> {
    let rows = BufReader::new(GzDecoder::new(File::open(path)?));
    let image = |row: std::io::Result<String>| {
        let cells = row?.split(',').map(str::parse::<f32>).collect::<Result<Vec<_>, _>>()?;
        let (pixels, digit) = cells.split_at_checked(PIXELS).ok_or("a row is too short")?;
        let mut image = [0.0; PIXELS];
        image.iter_mut().zip(pixels).for_each(|(to, pixel)| *to = pixel / 16.0);
        Ok::<_, Box<dyn Error>>((image, *digit.first().ok_or("a row has no digit")? as usize))
    };
    rows.lines().map(image).collect()
}

/// The same start on every trainer: weights between -0.2 and 0.2 of a linear congruential generator, biases of zero.
fn start() -> Net {
    let mut state = 1u32;
    PARAMETERS.map(|(name, [rows, columns])| {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if name.ends_with("bias") { 0.0 } else { (state >> 8) as f32 / (1 << 24) as f32 * 0.4 - 0.2 }
        };
        (0..rows * columns).map(|_| next()).collect()
    })
}

fn forward(net: &Net, image: &[f32; PIXELS]) -> ([f32; HIDDEN], [f32; DIGITS]) {
    let (mut hidden, mut scores) = ([0.0; HIDDEN], [0.0; DIGITS]);
    hidden.copy_from_slice(&net[1]);
    for (pixel, row) in image.iter().zip(net[0].chunks(HIDDEN)) {
        hidden.iter_mut().zip(row).for_each(|(sum, weight)| *sum += pixel * weight);
    }
    hidden.iter_mut().for_each(|sum| *sum = sum.max(0.0));
    scores.copy_from_slice(&net[3]);
    for (value, row) in hidden.iter().zip(net[2].chunks(DIGITS)) {
        scores.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * weight);
    }
    (hidden, scores)
}

/// The gradients of the mean cross entropy over these images, and that.
fn gradients(net: &Net, images: &[&([f32; PIXELS], usize)]) -> (Net, f32) {
    let (mut sum, mut loss) = (net.clone().map(|part| vec![0.0; part.len()]), 0.0);
    let share = 1.0 / images.len() as f32;
    for (image, digit) in images {
        let (hidden, mut scores) = forward(net, image);
        let most = scores.iter().fold(f32::MIN, |most, score| most.max(*score));
        scores.iter_mut().for_each(|score| *score = (*score - most).exp());
        let all: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= all);
        loss -= scores[*digit].ln() * share;
        scores[*digit] -= 1.0;
        let mut back = [0.0; HIDDEN];
        for ((value, back), (row, out)) in
            hidden.iter().zip(&mut back).zip(net[2].chunks(DIGITS).zip(sum[2].chunks_mut(DIGITS)))
        {
            for ((score, weight), sum) in scores.iter().zip(row).zip(out) {
                *sum += value * score * share;
                *back += if *value > 0.0 { score * weight } else { 0.0 };
            }
        }
        sum[3].iter_mut().zip(scores).for_each(|(sum, score)| *sum += score * share);
        for (pixel, row) in image.iter().zip(sum[0].chunks_mut(HIDDEN)) {
            row.iter_mut().zip(back).for_each(|(sum, back)| *sum += pixel * back * share);
        }
        sum[1].iter_mut().zip(back).for_each(|(sum, back)| *sum += back * share);
    }
    (sum, loss)
}

/// Trains on this trainer's part of each batch; `update` changes the net by a gradient.
fn train(
    (images, trainers, epochs): (&Images, &Group, usize),
    mut update: impl FnMut(&mut Net, Net) -> Result<(), Box<dyn Error>>,
) -> Result<Net, Box<dyn Error>> {
    let mut net = start();
    for epoch in 0..epochs {
        let mut last = 0.0;
        for batch in images[..TRAINED].chunks(BATCH) {
            let own: Vec<_> =
                batch.iter().skip(trainers.rank() as usize).step_by(trainers.size() as usize).collect();
            let (gradient, loss) = gradients(&net, &own);
            update(&mut net, gradient)?;
            last = loss;
        }
        let best = |scores: [f32; DIGITS]| (0..DIGITS).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let right =
            images[TRAINED..].iter().filter(|(image, digit)| best(forward(&net, image).1) == Some(*digit));
        if trainers.rank() == 0 {
            let share = right.count() as f32 / (images.len() - TRAINED) as f32;
            println!("epoch {epoch} loss {last:.6} right {:.1}%", share * 100.0);
        }
    }
    Ok(net)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { servers, epochs, data } = Arguments::parse();
    let group = shouter::init(Config::from_env()?)?;
    let name =
        |rank| if rank < servers { format!("pserver{rank}") } else { format!("trainer{}", rank - servers) };
    let names: Vec<_> = (0..group.size()).map(name).collect();
    let (serving, training) = names.split_at_checked(servers as usize).ok_or("more servers than ranks")?;
    let actors = Actors::meet(&group, &names[group.rank() as usize])?;
    let plan = Plan::new(serving, training);
    let trainers =
        group.split(Some(u32::from(group.rank() < servers)), 0)?.ok_or("every rank has a color")?;
    if group.rank() < servers {
        Server::connect(&actors, plan)?.serve()?;
    } else {
        let images = images(&data)?;
        let mut client = Client::connect(&actors, plan)?;
        if trainers.rank() == 0 {
            for ((name, shape), value) in PARAMETERS.iter().zip(&start()) {
                client.set(name, Array::new(value, shape)?, Optimizer::Sgd { rate: f64::from(RATE) })?;
            }
        }
        client.wait_for_all()?;
        let served = train((&images, &trainers, epochs), |net, gradient| {
            for ((name, shape), part) in PARAMETERS.iter().zip(&gradient) {
                client.push(name, Array::new(part, shape)?)?;
            }
            for ((name, _), part) in PARAMETERS.iter().zip(net) {
                client.pull(name, part)?;
            }
            Ok(())
        })?;
        client.leave()?;
        let reduced = train((&images, &trainers, epochs), |net, mut gradient| {
            for (part, gradient) in net.iter_mut().zip(&mut gradient) {
                trainers.all_reduce(gradient, ReduceOp::Avg)?;
                part.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= RATE * *gradient);
            }
            Ok(())
        })?;
        let pairs = || served.iter().flatten().zip(reduced.iter().flatten());
        let same = pairs().all(|(a, b)| a.to_bits() == b.to_bits());
        let apart = pairs().fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        if trainers.rank() == 0 {
            let what = if same { "the same bits as".into() } else { format!("at most {apart:e} from") };
            println!("{servers} servers, {} trainers: {what} an all-reduce", trainers.size());
        }
        if !same && (servers == 1 || apart > 1e-6) {
            return Err(format!("the parameters are {apart:e} from those of an all-reduce").into());
        }
    }
    group.finalize()?;
    Ok(())
}
