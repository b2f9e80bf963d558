//! `limit`: limits how many clients are served at a time.
//!
//! A client above the limit is refused, with the reason, when it chooses an export. Bytes pass as
//! if the filter were not there.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::{
    Admission, Admitted, Client, Error, ErrorKind, Fault, Filter, Filtered, Over, Params, Passes,
    Result, param, values,
};
use runtime::Mutex;

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "limit",
    summary: "limits how many clients are served at a time",
    keeps_disk: false,
    params: &[param("limit", "N", "most clients at a time (default 1; 0: no limit)")],
    example: "serve --filter=limit memory 1M limit=1 --run 'nbdcopy --connections=1 \"$uri\" null:'",
    open: |params, below, context| {
        let make = || Ok::<_, Error>(Clients { most: most(params)?, served: Mutex::default() });
        let clients = context.common(params, make)?;
        Ok(Filtered::device(Limit(clients), below))
    },
    ..FilterKind::PLAIN
};

fn most(params: &Params) -> Result<u64> {
    Ok(values::number(params, "limit")?.unwrap_or(1))
}

/// The clients being served.
struct Clients {
    most: u64,
    /// How often each client number was admitted; a client may choose one export after the other.
    served: Mutex<BTreeMap<u64, u64>>,
}

impl Clients {
    fn enter(&self, number: u64) -> Result<()> {
        let mut served = self.served.lock();
        let is_new = !served.contains_key(&number);
        if is_new && self.most > 0 && served.len() as u64 >= self.most {
            let action = format!("limit: no more than {} at a time are served", self.most);
            return Err(Error::new(ErrorKind::Limit, Fault::User, action));
        }
        *served.entry(number).or_default() += 1;
        Ok(())
    }

    fn leave(&self, number: u64) {
        let mut served = self.served.lock();
        if let Some(times) = served.get_mut(&number) {
            *times -= 1;
            if *times == 0 {
                served.remove(&number);
            }
        }
    }
}

struct Limit(Arc<Clients>);

impl Filter for Limit {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn admit(&self, client: &Client, then: Admitted) {
        let (clients, number) = (self.0.clone(), client.number);
        let entered = self.0.enter(number);
        then(entered.map(|()| Admission::until(move || clients.leave(number))));
    }
}

#[cfg(test)]
mod tests {
    use device::Device;
    use device::model::Model;
    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{self, blank, put};
    use device::Edge;

    fn connect(disk: &Edge, number: u64) -> Result<Option<Arc<dyn Device>>> {
        tested::connect(disk, &tested::client(number))
    }

    #[test]
    fn one_too_many_is_refused_until_another_has_gone() {
        let disk = put("limit", blank(512), &["limit=2"]).unwrap();
        let one = connect(&disk, 1).unwrap();
        let two = connect(&disk, 2).unwrap();
        let e = connect(&disk, 3).err().unwrap();
        assert!(e.to_string().contains("no more than 2 at a time"), "{e}");
        // The same client may choose again.
        let again = connect(&disk, 2).unwrap();
        drop(two);
        assert!(connect(&disk, 3).is_err());
        drop(again);
        let three = connect(&disk, 3).unwrap();
        assert!(connect(&disk, 4).is_err());
        drop((one, three));
        assert!(connect(&disk, 4).is_ok());
    }

    #[test]
    fn without_a_number_there_is_one_and_with_0_there_is_no_limit() {
        let disk = put("limit", blank(512), &[]).unwrap();
        let _one = connect(&disk, 1).unwrap();
        assert!(connect(&disk, 2).is_err());
        let disk = put("limit", blank(512), &["limit=0"]).unwrap();
        let all: Vec<_> = (0..1000).map(|number| connect(&disk, number).unwrap()).collect();
        assert_eq!(all.len(), 1000);
    }

    #[test]
    fn a_client_that_the_device_below_refuses_takes_no_place() {
        let below = TestDevice::over(Model::new(512)).connecting(|client, done| {
            let refused = client.number < 10;
            done(if refused { Err(Error::invalid("no")) } else { Ok(None) });
        });
        let disk = put("limit", below.shared(), &["limit=1"]).unwrap();
        (0..10).for_each(|number| assert!(connect(&disk, number).is_err()));
        assert!(connect(&disk, 10).is_ok());
    }
}
