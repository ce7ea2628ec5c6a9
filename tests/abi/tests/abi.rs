//! What `crates/fabric-verbs` declares equals what rdma-sys and ibverbs declare.

use std::mem::{offset_of, size_of};

use rackpool_abi::calls::{Inline, calls, completion};
use rackpool_abi::declared::{Declared, ibverbs, rdma_sys};
use rackpool_fabric_verbs::layout::{self, Struct};

/// The offset of a field in a struct of ours.
fn own_offset(structs: &[Struct], name: &str, field: &str) -> usize {
    let one = structs.iter().find(|one| one.name == name).unwrap();
    one.fields.iter().find(|one| one.name == field).unwrap().offset
}

/// Compares all structs. `lacks` names the fields that the package keeps private.
fn compare_structs(theirs: &Declared, lacks: &[(&str, &str)]) {
    let mut lacked = 0;
    for own in layout::structs() {
        let name = own.name;
        let other = theirs.structs.get(name).unwrap_or_else(|| panic!("{name} is not compared"));
        assert_eq!(own.align, other.align, "alignment of {name}");
        if own.is_start {
            assert!(own.size <= other.size, "{name}: {} B, theirs {} B", own.size, other.size);
        } else {
            assert_eq!(own.size, other.size, "size of {name}");
        }
        let mut compared = 0;
        for field in &own.fields {
            let Some((offset, size)) = other.fields.get(field.name) else {
                assert!(lacks.contains(&(name, field.name)), "{} of {name} is missing", field.name);
                lacked += 1;
                continue;
            };
            assert_eq!(field.offset, *offset, "offset of {} in {name}", field.name);
            if let Some(own_size) = field.size {
                assert_eq!(own_size, *size, "size of {} in {name}", field.name);
            }
            compared += 1;
        }
        assert_eq!(compared, other.fields.len(), "a field of {name} is not ours");
    }
    assert_eq!(lacked, lacks.len());
    assert_eq!(theirs.structs.len(), layout::structs().len());
}

fn compare_constants(theirs: &Declared, lacks: &[&str]) {
    for own in layout::constants() {
        match theirs.constants.get(own.name) {
            Some(value) => assert_eq!(own.value, *value, "{}", own.name),
            None => assert!(lacks.contains(&own.name), "{} is not compared", own.name),
        }
    }
    assert_eq!(theirs.constants.len() + lacks.len(), layout::constants().len());
}

fn compare_functions(theirs: &Declared, lacks: &[&str]) {
    for (name, sizes) in layout::functions() {
        match theirs.functions.get(name) {
            Some(others) => assert_eq!(sizes, *others, "{name}"),
            None => assert!(lacks.contains(&name), "{name} is not compared"),
        }
    }
    assert_eq!(theirs.functions.len() + lacks.len(), layout::functions().len());
    let own = layout::slots().into_iter().map(|(name, offset, sizes)| (name, (offset, sizes)));
    assert_eq!(own.collect::<std::collections::BTreeMap<_, _>>(), theirs.slots);
}

#[test]
fn all_declarations_equal_those_of_rdma_sys() {
    let theirs = rdma_sys();
    compare_structs(&theirs, &[]);
    compare_constants(&theirs, &["IBV_LINK_LAYER_INFINIBAND"]);
    compare_functions(&theirs, &["_ibv_query_gid_table"]);
}

/// The first fields of a completion of ibverbs, which it keeps private.
const PRIVATE: [(&str, &str); 5] = [
    ("struct ibv_wc", "wr_id"),
    ("struct ibv_wc", "status"),
    ("struct ibv_wc", "opcode"),
    ("struct ibv_wc", "vendor_err"),
    ("struct ibv_wc", "byte_len"),
];

#[test]
fn all_declarations_equal_those_of_ibverbs() {
    let theirs = ibverbs();
    compare_structs(&theirs, &PRIVATE);
    compare_constants(&theirs, &[]);
    compare_functions(&theirs, &[]);
}

#[test]
fn the_private_fields_of_a_completion_of_ibverbs_are_where_ours_are() {
    let structs = layout::structs();
    let mut bytes = [0; 48];
    for (value, (name, field)) in (1..).zip(PRIVATE) {
        bytes[own_offset(&structs, name, field)] = value;
    }
    #[cfg(target_endian = "big")]
    panic!("the numbers below are little-endian");
    let completion = completion(bytes);
    assert_eq!((completion.wr_id(), completion.opcode(), completion.len()), (1, 3, 5));
    assert_eq!(completion.error(), Some((2, 4)));
}

/// The header's inline functions call the function pointers that ours call.
#[test]
fn inline_functions_take_their_pointers_from_our_offsets() {
    for (name, offset, _) in layout::slots() {
        let inline = match name {
            "poll_cq" => Inline::PollCq,
            "req_notify_cq" => Inline::ReqNotifyCq,
            "post_send" => Inline::PostSend,
            "post_recv" => Inline::PostRecv,
            other => panic!("{other} is not tried"),
        };
        assert!(calls(inline, offset), "{name}");
    }
}

/// The packages differ in two structs, since ibverbs contains the later rdma-core 55. A port's
/// attributes are ours as rdma-sys declares them from the headers of rdma-core 44; ibverbs has one
/// more field at their end. The exported `ibv_query_port`, which ours calls, writes neither that
/// field nor `port_cap_flags2`. `ibv_qp_ex` is not declared by ours, which posts lists of requests.
#[test]
fn where_the_packages_differ_ours_equals_rdma_sys_and_begins_like_ibverbs() {
    let structs = layout::structs();
    let own = structs.iter().find(|one| one.name == "struct ibv_port_attr").unwrap();
    assert_eq!(own.size, size_of::<rdma_sys::ibv_port_attr>());
    assert_eq!(own.size, offset_of!(ibverbs_sys::ibv_port_attr, active_speed_ex));
    assert_eq!(own.size + 4, size_of::<ibverbs_sys::ibv_port_attr>());

    assert!(structs.iter().all(|one| one.name != "struct ibv_qp_ex"));
    let theirs = [size_of::<rdma_sys::ibv_qp_ex>(), size_of::<ibverbs_sys::ibv_qp_ex>()];
    assert_eq!(theirs[0] + size_of::<usize>(), theirs[1], "ibverbs has wr_flush at the end");
}
