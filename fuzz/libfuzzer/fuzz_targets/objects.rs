#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rackpool_fuzz::objects::objects(bytes));
