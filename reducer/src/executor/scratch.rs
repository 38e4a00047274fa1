//! Lists that are filled anew for every use, kept for their memory.

use crate::memory::{Addresses, Span};
use crate::transport::TensorView;

/// The lists.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    addresses: Addresses,
    spans: Vec<Span>,
    views: Vec<TensorView>,
}

impl Scratch {
    /// The addresses of a fold's operands.
    #[inline]
    pub(super) fn addresses(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// Collects the ranges; `None` if one is missing.
    pub(super) fn spans(&mut self, spans: impl Iterator<Item = Option<Span>>) -> Option<&[Span]> {
        self.spans.clear();
        for span in spans {
            self.spans.push(span?);
        }
        Some(&self.spans)
    }

    /// The locations of the tensors of the node's ranks; `None` if one is not known.
    pub(super) fn views(&mut self, views: impl Iterator<Item = TensorView>) -> Option<&[TensorView]> {
        self.views.clear();
        for view in views {
            match view {
                TensorView::Unknown => return None,
                view => self.views.push(view),
            }
        }
        Some(&self.views)
    }
}
