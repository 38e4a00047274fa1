//! `getsockopt` and `setsockopt`. Options that the stack does not support are refused, not ignored.

use core::time::Duration;

use shouter_netstack::tcp::StateName;

use super::info;
use super::tcp::{Phase, TcpSocket};
use super::udp::UdpSocket;
use crate::errno::{Errno, Result};
use crate::flags::{algorithm, algorithm_name};
use crate::net::Net;

/// The longest name of a congestion control, its end included (TCP_CA_NAME_MAX).
const NAME_MAX: usize = 16;

/// The buffer sizes that Linux reports by default.
const SEND_BUFFER: i32 = 16384;
const RECEIVE_BUFFER: i32 = 131_072;

/// The smallest buffer sizes on Linux.
const MIN_SEND_BUFFER: i32 = 4608;
const MIN_RECEIVE_BUFFER: i32 = 2304;

const UNKNOWN_OPTION: Errno = Errno(libc::ENOPROTOOPT);

/// The leading `int` of an option.
fn number(value: &[u8]) -> Result<i32> {
    let bytes = value.first_chunk::<4>().ok_or(Errno(libc::EINVAL))?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// An `int` that may not be negative.
fn natural(value: &[u8]) -> Result<u32> {
    u32::try_from(number(value)?).map_err(|_| Errno(libc::EINVAL))
}

fn within(value: &[u8], range: core::ops::RangeInclusive<u32>) -> Result<u32> {
    natural(value).and_then(|value| if range.contains(&value) { Ok(value) } else { Err(Errno(libc::EINVAL)) })
}

/// A `struct timeval`; `None` for zero, which means no limit.
fn time(value: &[u8]) -> Result<Option<Duration>> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(Errno(libc::EINVAL))?;
    let micros = rest.first_chunk::<8>().ok_or(Errno(libc::EINVAL))?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).map_err(|_| Errno(libc::EDOM))?;
    let micros = u64::try_from(i64::from_ne_bytes(*micros)).map_err(|_| Errno(libc::EDOM))?;
    if micros >= 1_000_000 {
        return Err(Errno(libc::EDOM));
    }
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    Ok(Some(time).filter(|time| !time.is_zero()))
}

fn time_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    [seconds.to_ne_bytes(), i64::from(time.subsec_micros()).to_ne_bytes()].concat()
}

fn int(value: impl Into<i64>) -> Vec<u8> {
    i32::try_from(value.into()).unwrap_or(i32::MAX).to_ne_bytes().to_vec()
}

fn seconds(time: Duration) -> Vec<u8> {
    int(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

impl TcpSocket {
    /// Sets an option.
    pub(crate) fn set_option(&mut self, net: &mut Net, level: i32, name: i32, value: &[u8]) -> Result<()> {
        match (level, name) {
            (libc::SOL_SOCKET, _) => self.set_socket_option(name, value)?,
            (libc::IPPROTO_TCP, _) => self.set_tcp_option(name, value)?,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if self.phase == Phase::Fresh => {
                self.v6_only = number(value)? != 0;
            }
            _ => return Err(UNKNOWN_OPTION),
        }
        self.apply(net);
        // Linux sends data that was held back, corked or not, when either option is set so.
        let pushes = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => !self.options.nagle,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => !self.options.cork,
            _ => false,
        };
        if pushes {
            self.push(net);
        }
        Ok(())
    }

    fn set_socket_option(&mut self, name: i32, value: &[u8]) -> Result<()> {
        match name {
            libc::SO_REUSEADDR | libc::SO_REUSEPORT => self.reuse = number(value)? != 0,
            libc::SO_KEEPALIVE => {
                self.options.keep_alive = if number(value)? != 0 { Some(self.keep_alive) } else { None };
            }
            libc::SO_LINGER => {
                let on = number(value)? != 0;
                let time = natural(value.get(4..).unwrap_or_default())?;
                self.linger = on.then(|| Duration::from_secs(u64::from(time)));
            }
            libc::SO_SNDBUF => {
                let bytes = number(value)?.clamp(MIN_SEND_BUFFER / 2, i32::MAX / 2);
                self.buffers.0 = Some(bytes * 2);
                // Linux also counts the bookkeeping of the bytes; here the buffer counts only the bytes.
                self.options.send_buffer = usize::try_from(bytes * 2).unwrap_or_default();
            }
            libc::SO_RCVBUF => {
                let bytes = number(value)?.clamp(MIN_RECEIVE_BUFFER / 2, i32::MAX / 2);
                self.buffers.1 = Some(bytes * 2);
                self.options.receive_buffer = usize::try_from(bytes).unwrap_or_default();
            }
            libc::SO_RCVTIMEO => self.timeouts.0 = time(value)?,
            libc::SO_SNDTIMEO => self.timeouts.1 = time(value)?,
            _ => return Err(UNKNOWN_OPTION),
        }
        Ok(())
    }

    fn set_tcp_option(&mut self, name: i32, value: &[u8]) -> Result<()> {
        let options = &mut self.options;
        let secs = |value: u32| Duration::from_secs(u64::from(value));
        match name {
            libc::TCP_NODELAY => options.nagle = number(value)? == 0,
            libc::TCP_CORK => options.cork = number(value)? != 0,
            // 0 means no limit.
            libc::TCP_NOTSENT_LOWAT => {
                let limit = number(value)?.cast_unsigned();
                options.unsent_limit = (limit > 0).then(|| usize::try_from(limit).unwrap_or(usize::MAX));
            }
            libc::TCP_INQ => self.reports_unread = within(value, 0..=1)? == 1,
            // Linux's bounds; 0 removes the limit.
            libc::TCP_MAXSEG => match natural(value)? {
                0 => options.max_segment = None,
                size @ 88..=32767 => options.max_segment = u16::try_from(size).ok(),
                _ => return Err(Errno(libc::EINVAL)),
            },
            libc::TCP_KEEPIDLE => self.keep_alive.idle = secs(within(value, 1..=32767)?),
            libc::TCP_KEEPINTVL => self.keep_alive.interval = secs(within(value, 1..=32767)?),
            libc::TCP_KEEPCNT => {
                self.keep_alive.probes = u8::try_from(within(value, 1..=127)?).unwrap_or(u8::MAX);
            }
            libc::TCP_SYNCNT => {
                options.syn_retries = u8::try_from(within(value, 1..=127)?).unwrap_or(u8::MAX);
            }
            libc::TCP_USER_TIMEOUT => {
                let millis = natural(value)?;
                options.user_timeout = (millis > 0).then(|| Duration::from_millis(u64::from(millis)));
            }
            libc::TCP_LINGER2 => {
                // A negative value means no time at all.
                let time = number(value)?.clamp(0, 120);
                options.fin_wait_2 = Duration::from_secs(u64::from(time.unsigned_abs()));
            }
            libc::TCP_CONGESTION => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                let name = value.get(..end).and_then(|name| core::str::from_utf8(name).ok());
                options.congestion = name.and_then(algorithm).ok_or(Errno(libc::ENOENT))?;
            }
            _ => return Err(UNKNOWN_OPTION),
        }
        if let Some(keep_alive) = &mut self.options.keep_alive {
            *keep_alive = self.keep_alive;
        }
        Ok(())
    }

    /// The bytes of an option.
    pub(crate) fn option(&mut self, net: &Net, level: i32, name: i32) -> Result<Vec<u8>> {
        match level {
            libc::SOL_SOCKET => self.socket_option(name),
            libc::IPPROTO_TCP => self.tcp_option(net, name),
            libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => Ok(int(self.v6_only)),
            _ => Err(UNKNOWN_OPTION),
        }
    }

    fn socket_option(&mut self, name: i32) -> Result<Vec<u8>> {
        Ok(match name {
            libc::SO_ERROR => int(self.error.take().map_or(0, |Errno(number)| number)),
            libc::SO_TYPE => int(libc::SOCK_STREAM),
            libc::SO_PROTOCOL => int(libc::IPPROTO_TCP),
            libc::SO_DOMAIN => int(self.domain.number()),
            libc::SO_ACCEPTCONN => int(matches!(self.phase, Phase::Listening(_))),
            libc::SO_REUSEADDR | libc::SO_REUSEPORT => int(self.reuse),
            libc::SO_KEEPALIVE => int(self.options.keep_alive.is_some()),
            libc::SO_SNDBUF => int(self.buffers.0.unwrap_or(SEND_BUFFER)),
            libc::SO_RCVBUF => int(self.buffers.1.unwrap_or(RECEIVE_BUFFER)),
            libc::SO_LINGER => {
                [int(self.linger.is_some()), seconds(self.linger.unwrap_or_default())].concat()
            }
            libc::SO_RCVTIMEO => time_bytes(self.timeouts.0),
            libc::SO_SNDTIMEO => time_bytes(self.timeouts.1),
            _ => return Err(UNKNOWN_OPTION),
        })
    }

    fn tcp_option(&self, net: &Net, name: i32) -> Result<Vec<u8>> {
        let options = &self.options;
        Ok(match name {
            libc::TCP_NODELAY => int(!options.nagle),
            libc::TCP_CORK => int(options.cork),
            libc::TCP_NOTSENT_LOWAT => {
                int(options.unsent_limit.map_or(0, |limit| i64::try_from(limit).unwrap_or(i64::MAX)))
            }
            libc::TCP_INQ => int(self.reports_unread),
            libc::TCP_MAXSEG => {
                //= RFC 9293 section 3.7.1, MUST-15: 536 unless the peer says otherwise.
                let before = options.max_segment.unwrap_or(536);
                int(self.info(net).map_or(before, |info| info.mss))
            }
            libc::TCP_KEEPIDLE => seconds(self.keep_alive.idle),
            libc::TCP_KEEPINTVL => seconds(self.keep_alive.interval),
            libc::TCP_KEEPCNT => int(self.keep_alive.probes),
            libc::TCP_SYNCNT => int(options.syn_retries),
            libc::TCP_USER_TIMEOUT => {
                int(i64::try_from(options.user_timeout.unwrap_or_default().as_millis()).unwrap_or(i64::MAX))
            }
            libc::TCP_LINGER2 => seconds(options.fin_wait_2),
            libc::TCP_CONGESTION => {
                let mut name = algorithm_name(options.congestion).as_bytes().to_vec();
                name.resize(NAME_MAX, 0);
                name
            }
            libc::TCP_INFO => match self.info(net).zip(self.sending(net)) {
                Some((info, sending)) => info::of_connection(&info, &sending, net.setup.mtu).to_vec(),
                None if matches!(self.phase, Phase::Listening(_)) => {
                    info::of_state(StateName::Listen).to_vec()
                }
                None => info::of_state(StateName::Closed).to_vec(),
            },
            _ => return Err(UNKNOWN_OPTION),
        })
    }
}

impl UdpSocket {
    /// Sets an option.
    pub(crate) fn set_option(&mut self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.timeout = time(value)?,
            // A send waits only for the device.
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => drop(time(value)?),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => drop(number(value)?),
            _ => return Err(UNKNOWN_OPTION),
        }
        Ok(())
    }

    /// The bytes of an option.
    pub(crate) fn option(&mut self, level: i32, name: i32) -> Result<Vec<u8>> {
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => int(self.error.take().map_or(0, |Errno(number)| number)),
            (libc::SOL_SOCKET, libc::SO_TYPE) => int(libc::SOCK_DGRAM),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_UDP),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(self.domain.number()),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => time_bytes(self.timeout),
            _ => return Err(UNKNOWN_OPTION),
        })
    }
}
