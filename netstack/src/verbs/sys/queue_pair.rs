//! Queue pairs.

use core::ffi::c_int;
use core::mem::{MaybeUninit, zeroed};
use core::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::super::queue_pair::{BATCH, Connection, Destination, MAX_SGE, Operation, QpConfig, WorkRequest};
use super::{Errno, Queue};

/// A queue pair of the reliable connected service. Destroyed when dropped.
#[derive(Debug)]
pub(in super::super) struct Pair {
    qp: NonNull<rdma_sys::ibv_qp>,
    max_inline: u32,
    _queue: Arc<Queue>,
}

// SAFETY: libibverbs lets any thread post to and change a queue pair, several at a time too.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// PSNs have 24 bits.
const PSN_MASK: u32 = 0xff_ffff;
/// `rnr_retry` and the like have 3 bits.
const THREE_BITS: u8 = 7;

fn attributes() -> rdma_sys::ibv_qp_attr {
    // SAFETY: numbers, and a union of bytes and numbers: all zero is valid.
    unsafe { zeroed() }
}

/// The attributes of a connection that receives; what has more bits than its field is cut. `path_mtu` is of `enum ibv_mtu`.
pub(super) fn receiving(connection: &Connection, path_mtu: u32) -> rdma_sys::ibv_qp_attr {
    let mut to = rdma_sys::ibv_qp_attr {
        qp_state: state::IBV_QPS_RTR,
        path_mtu,
        dest_qp_num: connection.remote_qp,
        rq_psn: connection.remote_psn & PSN_MASK,
        max_dest_rd_atomic: connection.max_rd_atomic,
        min_rnr_timer: connection.min_rnr_timer & 31,
        ..attributes()
    };
    to.ah_attr.port_num = connection.port;
    to.ah_attr.sl = connection.service_level;
    match connection.destination {
        Destination::InfiniBand { lid } => to.ah_attr.dlid = lid,
        // RoCE needs a global route.
        Destination::Roce { gid_index, gid } => {
            to.ah_attr.is_global = 1;
            to.ah_attr.grh.dgid = rdma_sys::ibv_gid { raw: gid };
            to.ah_attr.grh.sgid_index = gid_index;
            to.ah_attr.grh.flow_label = connection.flow_label & 0xf_ffff;
            to.ah_attr.grh.hop_limit = connection.hop_limit;
            to.ah_attr.grh.traffic_class = connection.traffic_class;
        }
    }
    to
}

/// The attributes of a connection that sends, too.
pub(super) fn sending(connection: &Connection) -> rdma_sys::ibv_qp_attr {
    rdma_sys::ibv_qp_attr {
        qp_state: state::IBV_QPS_RTS,
        timeout: connection.timeout & 31,
        retry_cnt: connection.retry_cnt.min(THREE_BITS),
        rnr_retry: connection.rnr_retry.min(THREE_BITS),
        sq_psn: connection.local_psn & PSN_MASK,
        max_rd_atomic: connection.max_rd_atomic,
        ..attributes()
    }
}

impl Pair {
    /// A queue pair in the state RESET, with `inline` bytes or more of inline data.
    pub(in super::super) fn new(queue: &Arc<Queue>, config: QpConfig, inline: u32) -> Result<Self, Errno> {
        let cap = rdma_sys::ibv_qp_cap {
            max_send_wr: config.max_send,
            max_recv_wr: config.max_recv,
            max_send_sge: MAX_SGE as u32,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let mut init = rdma_sys::ibv_qp_init_attr {
            qp_context: core::ptr::null_mut(),
            send_cq: queue.cq(),
            recv_cq: queue.cq(),
            srq: core::ptr::null_mut(),
            cap,
            qp_type: rdma_sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: an open domain and a live queue of it; both outlive the pair, which holds the queue.
        let qp = unsafe { rdma_sys::ibv_create_qp(queue.domain.pd(), &mut init) };
        let qp = NonNull::new(qp).ok_or_else(Errno::last)?;
        Ok(Self { qp, max_inline: init.cap.max_inline_data, _queue: Arc::clone(queue) })
    }

    fn qp(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_ptr()
    }

    pub(in super::super) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    pub(in super::super) fn number(&self) -> u32 {
        // SAFETY: the pair lives until `self` is dropped.
        unsafe { (*self.qp()).qp_num }
    }

    fn modify(
        &self,
        attributes: &mut rdma_sys::ibv_qp_attr,
        fields: rdma_sys::ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        // SAFETY: a live pair; the mask names fields that the caller set.
        Errno::check(unsafe { rdma_sys::ibv_modify_qp(self.qp(), attributes, fields.0.cast_signed()) })
    }

    /// To a state that needs nothing else: RESET or ERROR.
    fn to_state(&self, to: state::Type) -> Result<(), Errno> {
        let mut to = rdma_sys::ibv_qp_attr { qp_state: to, ..attributes() };
        self.modify(&mut to, mask::IBV_QP_STATE)
    }

    pub(in super::super) fn reset(&self) -> Result<(), Errno> {
        self.to_state(state::IBV_QPS_RESET)
    }

    pub(in super::super) fn fail(&self) -> Result<(), Errno> {
        self.to_state(state::IBV_QPS_ERR)
    }

    /// RESET to INIT.
    pub(in super::super) fn init(&self, port: u8, access: u32) -> Result<(), Errno> {
        let mut to = rdma_sys::ibv_qp_attr {
            qp_state: state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: access,
            ..attributes()
        };
        self.modify(
            &mut to,
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// INIT to RTR: ready to receive.
    pub(in super::super) fn ready_to_receive(
        &self,
        connection: &Connection,
        path_mtu: u32,
    ) -> Result<(), Errno> {
        let mut to = receiving(connection, path_mtu);
        self.modify(
            &mut to,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )
    }

    /// RTR to RTS: ready to send.
    pub(in super::super) fn ready_to_send(&self, connection: &Connection) -> Result<(), Errno> {
        let mut to = sending(connection);
        self.modify(
            &mut to,
            mask::IBV_QP_STATE
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// The state, as the device says it.
    pub(in super::super) fn state(&self) -> Result<u32, Errno> {
        let mut answer = attributes();
        // SAFETY: pointers, which may be null, and numbers: all zero is valid.
        let mut init: rdma_sys::ibv_qp_init_attr = unsafe { zeroed() };
        // SAFETY: a live pair, and room for both answers.
        let result = unsafe {
            rdma_sys::ibv_query_qp(self.qp(), &mut answer, mask::IBV_QP_STATE.0.cast_signed(), &mut init)
        };
        Errno::check(result)?;
        Ok(answer.qp_state)
    }

    /// Posts up to [`BATCH`] receives without a buffer, as one chain. On failure, how many were taken.
    #[inline]
    pub(in super::super) fn post_recv(&self, wr_ids: &[u64]) -> Result<(), (usize, Errno)> {
        let mut chain = [const { MaybeUninit::<rdma_sys::ibv_recv_wr>::uninit() }; BATCH];
        let count = wr_ids.len().min(BATCH);
        if count == 0 {
            return Ok(());
        }
        let first = chain.as_mut_ptr().cast::<rdma_sys::ibv_recv_wr>();
        for (index, &wr_id) in wr_ids[..count].iter().enumerate() {
            let next = if index + 1 < count { first.wrapping_add(index + 1) } else { core::ptr::null_mut() };
            let request = rdma_sys::ibv_recv_wr { wr_id, next, sg_list: core::ptr::null_mut(), num_sge: 0 };
            // SAFETY: `index` < BATCH, so it lies inside the array above, which is reached through this pointer alone.
            unsafe { first.wrapping_add(index).write(request) };
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: a live pair and a chain of `count` requests on the stack, which the call copies.
        let result = unsafe { rdma_sys::ibv_post_recv(self.qp(), first, &mut bad) };
        taken(result, first, bad, count)
    }

    /// Posts up to [`BATCH`] requests as one chain. On failure, how many were taken. The caller has checked that inline data
    /// fits.
    #[inline]
    pub(in super::super) fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), (usize, Errno)> {
        let mut chain = [const { MaybeUninit::<rdma_sys::ibv_send_wr>::uninit() }; BATCH];
        let mut elements = [const { MaybeUninit::<[rdma_sys::ibv_sge; MAX_SGE]>::uninit() }; BATCH];
        let count = requests.len().min(BATCH);
        if count == 0 {
            return Ok(());
        }
        let first = chain.as_mut_ptr().cast::<rdma_sys::ibv_send_wr>();
        let lists = elements.as_mut_ptr().cast::<[rdma_sys::ibv_sge; MAX_SGE]>();
        for (index, request) in requests[..count].iter().enumerate() {
            let next = if index + 1 < count { first.wrapping_add(index + 1) } else { core::ptr::null_mut() };
            let list = lists.wrapping_add(index);
            // SAFETY: `index` < BATCH, so both lie inside the arrays above, through whose pointers alone they are reached.
            unsafe {
                list.write(request.sges.raw());
                first.wrapping_add(index).write(raw(request, next, list.cast()));
            }
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: a live pair and a chain of `count` requests on the stack, which the call copies. Inline data is read during
        // the call, while the elements' borrow keeps its memory; other data is reached by key, and a region's key
        // ends before its memory does.
        let result = unsafe { rdma_sys::ibv_post_send(self.qp(), first, &mut bad) };
        taken(result, first, bad, count)
    }
}

/// How many requests of a chain were taken: those before the bad one. A driver that fails without naming one had queued all
/// of them (rxe, when it cannot ring the doorbell).
pub(super) fn taken<T>(
    result: c_int,
    first: *mut T,
    bad: *mut T,
    count: usize,
) -> Result<(), (usize, Errno)> {
    let Err(errno) = Errno::check(result) else { return Ok(()) };
    if bad.is_null() {
        return Err((count, errno));
    }
    let offset = (bad as usize).wrapping_sub(first as usize) / size_of::<T>();
    Err((offset.min(count), errno))
}

#[inline]
fn raw(
    request: &WorkRequest<'_>,
    next: *mut rdma_sys::ibv_send_wr,
    sg_list: *mut rdma_sys::ibv_sge,
) -> rdma_sys::ibv_send_wr {
    use rdma_sys::{ibv_send_flags as flags, ibv_wr_opcode as opcode};
    let flag = |on, flag: rdma_sys::ibv_send_flags| if on { flag.0 } else { 0 };
    // SAFETY: pointers that may be null, numbers, and unions of such: all zero is valid.
    let mut raw: rdma_sys::ibv_send_wr = unsafe { zeroed() };
    raw.wr_id = request.wr_id;
    raw.next = next;
    raw.sg_list = sg_list;
    raw.num_sge = request.sges.as_slice().len() as c_int;
    raw.send_flags = flag(request.signalled, flags::IBV_SEND_SIGNALED)
        | flag(request.inline, flags::IBV_SEND_INLINE)
        | flag(request.fence, flags::IBV_SEND_FENCE);
    let (opcode, at, imm) = match request.operation {
        Operation::Write { remote, rkey } => (opcode::IBV_WR_RDMA_WRITE, Some((remote, rkey)), None),
        Operation::WriteImm { remote, rkey, imm } => {
            (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, Some((remote, rkey)), Some(imm))
        }
        Operation::Read { remote, rkey } => (opcode::IBV_WR_RDMA_READ, Some((remote, rkey)), None),
        Operation::SendImm { imm } => (opcode::IBV_WR_SEND_WITH_IMM, None, Some(imm)),
    };
    raw.opcode = opcode;
    if let Some((remote_addr, rkey)) = at {
        raw.wr.rdma = rdma_sys::rdma_t { remote_addr, rkey };
    }
    if let Some(imm) = imm {
        raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
    }
    raw
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A failure leaves the kernel to clean up when the process ends.
        // SAFETY: created by `new`, destroyed once, before its completion queue.
        unsafe { rdma_sys::ibv_destroy_qp(self.qp.as_ptr()) };
    }
}
