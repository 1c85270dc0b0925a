// The engine configuration that the compiler compiles for and sandbox-host loads with, included by both packages so that
// they cannot differ: Wasmtime refuses code whose recorded settings are not those of the loading engine.

/// One configuration for both processes. The broker's cache key covers it by the build's identity.
pub(crate) fn engine_config() -> wasmtime::Config {
    let mut config = wasmtime::Config::new();
    config
        // Bounds on time come from the epoch: sandbox-host counts it up from a thread of its own.
        .epoch_interruption(true)
        .consume_fuel(false)
        // Guests are single-threaded, 32-bit and without a garbage collector.
        .concurrency_support(false)
        .gc_support(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false)
        // A memory image mapped from the code file would need that file's descriptor to be mapped again at every call,
        // after sealing; the images are small, so they are copied.
        .memory_init_cow(false)
        // Nothing here prints a guest's backtrace.
        .native_unwind_info(false)
        .generate_address_map(false)
        .max_wasm_stack(512 * 1024)
        .signals_based_traps(true);
    config
}
