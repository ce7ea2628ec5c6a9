use super::*;

const TEST: Protocol = Protocol { magic: *b"racktest", name: "test" };

fn identity(rack: u16, key: Option<u8>) -> Identity {
    let key = key.map(|byte| FabricKey::new([byte; 32])).into();
    Identity { rack: RackId(rack), incarnation: Incarnation(1), key }
}

fn begin(identity: &Identity, role: Role) -> Handshake {
    Handshake::new(&TEST, identity, role).unwrap()
}

/// Gives a side the packets of `bytes`; returns its last step and its answers.
fn hear(
    side: &mut Handshake,
    key: &Keyring,
    mut bytes: &[u8],
) -> Result<(Step, Vec<u8>), FabricError> {
    let (mut step, mut answer) = (Step::Wait, Vec::new());
    while !bytes.is_empty() {
        let (packet, rest) = bytes.split_at(TEST.len(bytes)?);
        assert_eq!(step, Step::Wait, "it does not wait for {packet:?}");
        step = side.receive(key, packet, &mut answer)?;
        bytes = rest;
    }
    Ok((step, answer))
}

/// Runs a handshake of rack 1 with rack 2 up to the proofs of both.
fn meet(one: &Identity, two: &Identity) -> Result<(Handshake, Handshake), FabricError> {
    let (mut initiator, mut acceptor) = (begin(one, Role::Initiator), begin(two, Role::Acceptor));
    let hello = initiator.hello().to_vec();
    let (step, answer) = hear(&mut acceptor, &two.key, &hello)?;
    assert!(step == Step::Wait && !acceptor.is_proven());
    let (step, proof) = hear(&mut initiator, &one.key, &answer)?;
    assert!(step == Step::Proven && initiator.is_proven());
    let (step, nothing) = hear(&mut acceptor, &two.key, &proof)?;
    assert_eq!((step, nothing), (Step::Proven, Vec::new()));
    Ok((initiator, acceptor))
}

#[test]
fn both_learn_who_the_other_is_and_what_it_offers() {
    for key in [None, Some(7)] {
        let (one, two) = (identity(1, key), identity(2, key));
        let (mut initiator, mut acceptor) = meet(&one, &two).unwrap();
        assert_eq!(initiator.peer(), Some((RackId(2), Incarnation(1))));
        assert_eq!(acceptor.peer(), Some((RackId(1), Incarnation(1))));
        let offer = initiator.offer(&one.key, b"mine".to_vec()).unwrap();
        let (step, _) = hear(&mut acceptor, &two.key, &offer).unwrap();
        assert_eq!(step, Step::Offer(b"mine".to_vec()));
        let offer = acceptor.offer(&two.key, b"ours".to_vec()).unwrap();
        let (step, _) = hear(&mut initiator, &one.key, &offer).unwrap();
        assert_eq!(step, Step::Offer(b"ours".to_vec()));
        let ready = TEST.encode(&Packet::Ready);
        assert_eq!(hear(&mut acceptor, &two.key, &ready).unwrap().0, Step::Ready);
        assert!(hear(&mut initiator, &one.key, &ready).is_err());
    }
}

#[test]
fn without_the_same_key_they_do_not_meet() {
    for (one, two) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
        let error = meet(&identity(1, one), &identity(2, two)).unwrap_err();
        assert!(matches!(error, FabricError::WrongKey { .. }), "{error}");
    }
}

#[test]
fn nobody_is_met_before_the_key_is_known_and_everybody_after_it_is_replaced() {
    let [one, two] =
        [1, 2].map(|rack| Identity { key: Keyring::awaited(), ..identity(rack, None) });
    assert_eq!(meet(&one, &two).unwrap_err(), FabricError::KeyAwaited);
    assert!(one.key.replace(FabricKey::new([7; 32])));
    assert_eq!(meet(&one, &two).unwrap_err(), FabricError::KeyAwaited);
    // A clone, as the control plane has one.
    assert!(two.key.clone().replace(FabricKey::new([7; 32])));
    assert!(!two.key.replace(FabricKey::new([7; 32])), "the same again");
    meet(&one, &two).unwrap();
    assert!(one.key.replace(FabricKey::new([8; 32])));
    assert!(matches!(meet(&one, &two).unwrap_err(), FabricError::WrongKey { .. }));
    two.key.replace(FabricKey::new([8; 32]));
    meet(&one, &two).unwrap();
    assert_eq!(format!("{:?}", one.key), "Keyring(secret)");
}

#[test]
fn an_unauthenticated_peer_that_reflects_or_invents_a_proof_is_not_let_in() {
    let keyed = identity(2, Some(7));
    let mut acceptor = begin(&keyed, Role::Acceptor);
    let hello = begin(&identity(1, Some(8)), Role::Initiator).hello().to_vec();
    let (_, answer) = hear(&mut acceptor, &keyed.key, &hello).unwrap();
    let reflected = &answer[TEST.len(&answer).unwrap()..];
    for proof in [reflected, &TEST.encode(&Packet::Proof([0; 32]))] {
        let error = hear(&mut acceptor, &keyed.key, proof).unwrap_err();
        assert!(matches!(error, FabricError::WrongKey { .. }), "{error}");
        assert!(!acceptor.is_proven());
    }
}

#[test]
fn an_offer_that_was_changed_reflected_or_made_for_another_handshake_is_refused() {
    let (one, two) = (identity(1, Some(7)), identity(2, Some(7)));
    let (mut initiator, mut acceptor) = meet(&one, &two).unwrap();
    let offer = initiator.offer(&one.key, b"mine".to_vec()).unwrap();
    let mut changed = offer.clone();
    *changed.last_mut().unwrap() ^= 1;
    let other = meet(&one, &two).unwrap().0.offer(&one.key, b"mine".to_vec()).unwrap();
    for bad in [&changed, &other] {
        let error = hear(&mut acceptor, &two.key, bad).unwrap_err();
        assert!(matches!(error, FabricError::WrongKey { .. }), "{error}");
    }
    assert!(hear(&mut initiator, &one.key, &offer).is_err(), "its own offer");
    assert!(hear(&mut acceptor, &two.key, &offer).is_ok());
}

#[test]
fn packets_out_of_order_are_errors() {
    let own = identity(1, None);
    let proof = TEST.encode(&Packet::Proof([0; 32]));
    let offer = TEST.encode(&Packet::Offer { proof: [0; 32], content: vec![1] });
    let (ready, goodbye) = (TEST.encode(&Packet::Ready), TEST.encode(&Packet::Goodbye));
    for role in [Role::Initiator, Role::Acceptor] {
        let mut side = begin(&own, role);
        for early in [&proof, &offer, &ready, &goodbye] {
            assert!(hear(&mut side, &own.key, early).is_err());
        }
        let hello = begin(&own, role.other()).hello().to_vec();
        assert!(hear(&mut side, &own.key, &hello).is_ok());
        for early in [&hello, &offer, &ready, &goodbye] {
            assert!(hear(&mut side, &own.key, early).is_err());
        }
        let refusal = TEST.encode(&Packet::Refusal("full".into()));
        let refused = hear(&mut side, &own.key, &refusal).unwrap_err();
        assert_eq!(refused, FabricError::Refused { reason: "full".into() });
    }
}
