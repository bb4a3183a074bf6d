/* Tests GPU properties and measured peak rates: within 15 % of known GPUs' peaks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/device.h"

#ifndef KVD_CUDA

int main(void)
{
    puts("skip ceilings: built without CUDA");
    return 0;
}

#else

#include <cuda_runtime_api.h>
#include <stdlib.h>

static int failures;

static void expect(int good, const char *name, const char *numbers)
{
    printf("%s ceilings %s: %s\n", good ? "ok" : "not ok", name, numbers);
    failures += !good;
}

static void check_rate(const char *name, const char *unit, double per_unit, const kvd_ceiling *c,
                       double known, int rc, const kvd_err *err)
{
    char text[256];
    if (rc) {
        expect(0, name, err->msg);
        return;
    }
    const double rate = c->rate / per_unit;
    snprintf(text, sizeof text, "%.1f %s (best %.1f), %.1f us, SM clock %.0f MHz", rate, unit,
             c->best / per_unit, c->median_us, c->sm_clock_mhz);
    expect(isfinite(rate) && rate > 0.0 && c->best >= c->rate && c->sm_clock_mhz > 100.0 &&
               c->sm_clock_mhz < 5000.0 &&
               (known == 0.0 || (rate > 0.85 * known && rate < 1.15 * known)),
           name, text);
}

static double or_zero(double x, int known)
{
    return known ? x : 0.0;
}

int main(void)
{
    kvd_device_info info;
    kvd_device_state state;
    kvd_err err = {""};
    char text[768];
    kvd_ceiling c;
    int n = 0;
    if (cudaGetDeviceCount(&n) || n == 0) {
        puts("skip ceilings: no CUDA device");
        return 0;
    }
    if (kvd_device_read(0, &info, &err)) {
        expect(0, "device", err.msg);
        return 1;
    }
    snprintf(text, sizeof text, "%s, %d SMs, L2 %zu, driver '%s'", info.name, info.n_sms,
             info.l2_bytes, info.driver);
    expect(info.name[0] && info.n_sms > 0 && info.l2_bytes > 0, "device", text);
    const int h200 = strstr(info.name, "H200") && info.n_sms == 132;

    const int read = kvd_device_state_read(0, &state, &err);
    snprintf(text, sizeof text, "SM %.0f MHz, memory %.0f MHz, %.0f C, reasons 0x%llx",
             state.sm_clock_mhz, state.mem_clock_mhz, state.temperature_c,
             (unsigned long long)state.throttle);
    expect(read == 0 && (isnan(state.sm_clock_mhz) ||
                         (state.sm_clock_mhz > 0.0 && state.temperature_c > 0.0)),
           "state", text);

    int failed = kvd_ceiling_copy(0, &c, &err);
    check_rate("copy", "GB/s", 1e9, &c, or_zero(4257.0, h200), failed, &err);
    failed = kvd_ceiling_read(0, &c, &err);
    check_rate("read", "GB/s", 1e9, &c, or_zero(4630.0, h200), failed, &err);
    failed = kvd_ceiling_ex2(&c, &err);
    check_rate("ex2", "G/s", 1e9, &c, or_zero(4150.0, h200), failed, &err);
    if (!failed) {
        const double per_clock = c.best / (double)info.n_sms / (c.sm_clock_mhz * 1e6);
        snprintf(text, sizeof text, "%.2f", per_clock);
        expect(!h200 || (per_clock > 15.0 && per_clock < 16.5), "ex2 per clock and SM", text);
    }
    failed = kvd_ceiling_gemm(0, &c, &err);
    check_rate("gemm 8192", "TFLOP/s", 1e12, &c, or_zero(790.0, h200), failed, &err);

    failed = kvd_ceiling_copy(24, &c, &err);
    expect(failed && strstr(err.msg, "24 bytes"), "refuses 24 bytes", err.msg);
    failed = kvd_ceiling_gemm(100, &c, &err);
    expect(failed && strstr(err.msg, "size 100"), "refuses size 100", err.msg);
    failed = kvd_device_read(1000, &info, &err);
    expect(failed && strstr(err.msg, "device 1000"), "refuses device 1000", err.msg);
    const kvd_clock_stamp *none = calloc(2, sizeof *none);
    expect(none && isnan(kvd_clock_between(none, none + 1)), "no stamps give NaN", "");
    free((void *)none);
    return failures != 0;
}

#endif
