//! How many peers may be at the door at a time, in all and from one place: whoever can reach the endpoint, certificate
//! or not, could otherwise keep operators out by knocking.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Peers that are let this far at a time.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    most_from_one: usize,
    here: Mutex<Here>,
}

#[derive(Debug, Default)]
struct Here {
    all: usize,
    by_place: HashMap<IpAddr, usize>,
}

/// A peer's place, until this is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    crowd: &'a Crowd,
    place: IpAddr,
}

impl Crowd {
    pub(super) fn new(most: usize, most_from_one: usize) -> Crowd {
        Crowd { most, most_from_one, here: Mutex::default() }
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more peer, if there is one.
    pub(super) fn enter(&self, from: IpAddr) -> Option<Place<'_>> {
        let place = network(from);
        let mut here = self.here();
        let from_there = here.by_place.get(&place).copied().unwrap_or(0);
        if here.all >= self.most || from_there >= self.most_from_one {
            return None;
        }
        here.all += 1;
        here.by_place.insert(place, from_there + 1);
        Some(Place { crowd: self, place })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut here = self.crowd.here();
        here.all -= 1;
        if let Some(count) = here.by_place.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                here.by_place.remove(&self.place);
            }
        }
    }
}

/// One machine has a whole /64 of IPv6.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_cannot_take_all_and_leaving_makes_room() {
        let crowd = Crowd::new(3, 2);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = crowd.enter(ip("10.0.0.1"));
        let second = crowd.enter(ip("10.0.0.1"));
        assert!(first.is_some() && second.is_some());
        assert!(crowd.enter(ip("10.0.0.1")).is_none(), "two from one place");
        let other = crowd.enter(ip("10.0.0.2"));
        assert!(other.is_some());
        assert!(crowd.enter(ip("10.0.0.3")).is_none(), "three in all");
        drop(first);
        let third = crowd.enter(ip("10.0.0.1"));
        assert!(third.is_some());
        drop((second, third, other));
        assert!(crowd.here().by_place.is_empty() && crowd.here().all == 0);
        let _one = crowd.enter(ip("fd00::1"));
        let _two = crowd.enter(ip("fd00::ffff:1"));
        assert!(crowd.enter(ip("fd00::2")).is_none(), "a /64 is one place");
    }
}
