//! Messages of clients that speak Plasma's protocol. The byte before a frame is 0 or 1 for one of
//! two clients, with 2 added if it connects anew and 4 for each 8 ms that pass before.

use rackpool_plasma::protocol::{NewObject, ObjectId, Request};

use crate::write;

const A: ObjectId = ObjectId([1; ObjectId::BYTES]);
const B: ObjectId = ObjectId([2; ObjectId::BYTES]);
const DIGEST: [u8; 8] = [9; 8];

fn create(id: ObjectId, data: u64) -> Request<'static> {
    Request::Create { id, evicts: true, data, metadata: 3, device: 0 }
}

fn object(id: ObjectId, data: &[u8]) -> NewObject<'_> {
    NewObject { id, data, metadata: b"meta", digest: DIGEST }
}

/// Writes the corpus of the target `plasma`.
pub(crate) fn seeds() -> anyhow::Result<()> {
    let get = |timeout_ms| Request::Get { ids: vec![A, B, A], timeout_ms };
    let seal = |id| Request::Seal { id, digest: DIGEST };
    one(
        "life",
        &[
            (0, Request::Connect),
            (0, Request::SetOptions { name: b"one", quota: 0 }),
            (0, create(A, 100)),
            (0, seal(A)),
            (1, get(0)),
            (0, Request::Delete { ids: vec![A, B] }),
            (0, Request::Release { id: A }),
            (1, Request::Release { id: A }),
            (1, Request::Contains { id: A }),
            (0, Request::List),
            (0, Request::DebugString),
        ],
    )?;
    one(
        "waiting",
        &[
            (1, get(-1)),
            (0, create(A, 10)),
            (0, create(B, 10)),
            (0, seal(B)),
            (0, seal(A)),
            (1 + 4 * 3, get(20)),
            (0, Request::List),
        ],
    )?;
    one(
        "abort",
        &[
            (0, create(A, 10)),
            (1, Request::Abort { id: A }),
            (0, Request::Abort { id: A }),
            (0, create(A, 10)),
            (2, create(A, 10)),
        ],
    )?;
    let batch = vec![object(A, &[7; 100]), object(B, &[8; 1500])];
    one(
        "evicted",
        &[
            (1, Request::Subscribe),
            (0, Request::CreateAndSealBatch { objects: batch, evicts: true }),
            (0, Request::RefreshLru { ids: vec![A] }),
            (
                0,
                Request::CreateAndSeal {
                    object: object(ObjectId([3; 20]), &[1; 900]),
                    evicts: true,
                },
            ),
            (1, get(0)),
            (0, Request::Evict { bytes: 5000 }),
            (0, Request::Disconnect),
        ],
    )?;
    one("full", &[(0, create(A, 1900)), (1, create(B, 1900)), (1, create(B, u64::MAX))])
}

fn one(name: &str, steps: &[(u8, Request<'_>)]) -> anyhow::Result<()> {
    let mut input = Vec::new();
    for (step, request) in steps {
        input.push(*step);
        input.extend(request.encode().unwrap_or_default());
    }
    write("plasma", name, &input)
}
