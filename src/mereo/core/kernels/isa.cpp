// Which of the instruction sets that the library was compiled for may run here.
#ifdef MEREO_CHOOSES
// The best one that this processor has; 0 is the one every processor of its kind has.
extern "C" int mereo_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}
#endif
