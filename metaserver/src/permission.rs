use rackpool_access::Party;
use rackpool_model::RackId;
use rackpool_wire::metadata::{MetadataRequest, Refusal};

/// Checks whether a party may send this request. Without credentials (`None`) every request is
/// permitted.
pub(crate) fn permit(party: Option<Party>, request: &MetadataRequest) -> Result<(), Refusal> {
    let Some(party) = party else { return Ok(()) };
    let asks_for = match request {
        MetadataRequest::Register(announced) => Some(announced.rack),
        MetadataRequest::Heartbeat { rack, .. }
        | MetadataRequest::Leave { rack, .. }
        | MetadataRequest::Swap { rack, .. } => Some(*rack),
        _ => None,
    };
    let changes = matches!(request, MetadataRequest::PutRoot { .. });
    match (party, asks_for) {
        (Party::Rack(own), Some(rack)) if own != rack => Err(not_the_rack(party, rack)),
        (Party::Rack(_), _) => Ok(()),
        (Party::Operator, Some(rack)) => Err(not_the_rack(party, rack)),
        (Party::Operator, None) if changes => {
            Err(Refusal::Denied("an operator may read the state of a pool, only its racks change it".into()))
        }
        (Party::Operator, None) => Ok(()),
        (Party::MetadataServer, _) => {
            Err(Refusal::Denied("these are the credentials of a metadata server, which sends no requests: use those of a rack or of the operator".into()))
        }
    }
}

fn not_the_rack(party: Party, rack: RackId) -> Refusal {
    Refusal::Denied(format!(
        "these are the credentials of {party}, which can't make requests for {rack}: name those of rack-{} \
         with --credentials",
        rack.0
    ))
}

#[cfg(test)]
mod tests {
    use rackpool_model::{Incarnation, PageId};
    use rackpool_wire::swap::{SwapId, ToServer};

    use super::*;

    #[test]
    fn a_rack_speaks_for_itself_only_and_an_operator_only_looks() {
        let rack = |number| RackId(number);
        let leave =
            |number| MetadataRequest::Leave { rack: rack(number), incarnation: Incarnation(1) };
        let beat = |number| MetadataRequest::Heartbeat {
            rack: rack(number),
            incarnation: Incarnation(1),
            free_frames: 0,
            seen_version: 0,
        };
        let swap = |number| MetadataRequest::Swap {
            rack: rack(number),
            incarnation: Incarnation(1),
            message: ToServer::Abort { swap: SwapId(1) },
        };
        let explain = MetadataRequest::Explain { page: PageId(1) };
        let put = MetadataRequest::PutRoot { name: "a".into(), expected: None, new: None };
        let locate = MetadataRequest::Locate { page: PageId(1) };
        let may = |party, request: &MetadataRequest| permit(party, request).is_ok();
        let status = MetadataRequest::Status;
        for request in
            [leave(1), beat(1), swap(1), put.clone(), locate.clone(), status, explain.clone()]
        {
            assert!(may(None, &request) && may(Some(Party::Rack(rack(1))), &request));
            assert!(!may(Some(Party::MetadataServer), &request));
        }
        for request in [leave(2), beat(2), swap(2)] {
            assert!(!may(Some(Party::Rack(rack(1))), &request));
            assert!(!may(Some(Party::Operator), &request));
        }
        assert!(!may(Some(Party::Operator), &put));
        assert!(may(Some(Party::Operator), &locate));
        assert!(may(Some(Party::Operator), &explain));
        assert!(may(Some(Party::Operator), &MetadataRequest::Status));
    }
}
