//! The layers of ResNet-50: 53 convolutions, each with its normalisation, and the classifier; 161 tensors.
//!
//! From He et al., "Deep Residual Learning for Image Recognition" (table 1), with the stride in the 3x3 convolution as torchvision has it
//! (`torchvision/models/resnet.py`), for images of 224 x 224.

/// A unit of computation and its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// Names and elements, in the order of the model.
    pub(super) tensors: Vec<(String, u64)>,
    /// Multiplications of a forward pass, for one image.
    pub(super) work: u64,
}

/// Blocks, and channels within a block, of the four stages.
const STAGES: [(u64, u64); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];

/// Channels that leave a block, for each within it.
const EXPANSION: u64 = 4;

/// All layers, the first one first.
pub(super) fn layers() -> Vec<Layer> {
    let mut size = 56;
    let mut channels = 64;
    let mut all = vec![convolution("conv1", "bn1", 7, (3, channels), 112)];
    for (stage, (blocks, width)) in (1..).zip(STAGES) {
        for block in 0..blocks {
            let name = |part: &str| format!("layer{stage}.{block}.{part}");
            let (before, out) = (size, width * EXPANSION);
            if block == 0 && stage > 1 {
                size /= 2;
            }
            let mut add = |conv: &str, bn: &str, kernel, channels, size| {
                all.push(convolution(&name(conv), &name(bn), kernel, channels, size));
            };
            add("conv1", "bn1", 1, (channels, width), before);
            add("conv2", "bn2", 3, (width, width), size);
            add("conv3", "bn3", 1, (width, out), size);
            if block == 0 {
                add("downsample.0", "downsample.1", 1, (channels, out), size);
            }
            channels = out;
        }
    }
    let tensors = vec![("fc.weight".into(), channels * 1000), ("fc.bias".into(), 1000)];
    all.push(Layer { tensors, work: channels * 1000 });
    all
}

/// A convolution from `from` to `to` channels with an output of `size` x `size`, and its normalisation.
fn convolution(name: &str, norm: &str, kernel: u64, (from, to): (u64, u64), size: u64) -> Layer {
    let weights = kernel * kernel * from * to;
    let tensors = vec![
        (format!("{name}.weight"), weights),
        (format!("{norm}.weight"), to),
        (format!("{norm}.bias"), to),
    ];
    Layer { tensors, work: weights * size * size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_tensors_and_the_parameters_that_torchvision_gives_for_it() {
        let layers = layers();
        let tensors = || layers.iter().flat_map(|layer| &layer.tensors);
        assert_eq!((layers.len(), tensors().count()), (54, 161));
        // `sum(p.numel() for p in torchvision.models.resnet50().parameters())`
        assert_eq!(tensors().map(|(_, count)| count).sum::<u64>(), 25_557_032);
        // 4.09 billion, as torchvision's documentation of the weights says.
        assert_eq!(layers.iter().map(|layer| layer.work).sum::<u64>() / 10_000_000, 408);
    }
}
