/* Compares GPU properties and peak rates that kvdim computes with published ones of known GPUs;
 * they may differ by 15 %. */

#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/device.h"

static void check_rate(const char *name, const char *unit, double per_unit, const kvd_ceiling *c,
                       double known, int rc, const kvd_err *err)
{
    const double rate = c->rate / per_unit;
    if (rc)
        test_result(0, name, "%s", err->msg);
    else
        test_result(isfinite(rate) && rate > 0.0 && c->best >= c->rate && c->sm_clock_mhz > 100.0 &&
                        c->sm_clock_mhz < 5000.0 &&
                        (known == 0.0 || (rate > 0.85 * known && rate < 1.15 * known)),
                    name, "%.1f %s (best %.1f), %.1f us, SM clock %.0f MHz", rate, unit,
                    c->best / per_unit, c->median_us, c->sm_clock_mhz);
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
    kvd_ceiling c;
    if (!gpu_devices("ceilings", 1))
        return 0;
    or_end(kvd_device_read(0, &info, &err), "device", err.msg);
    test_result(info.name[0] && info.n_sms > 0 && info.l2_bytes > 0, "device",
                "%s, %d SMs, L2 %zu, driver '%s'", info.name, info.n_sms, info.l2_bytes,
                info.driver);
    const int h200 = strstr(info.name, "H200") && info.n_sms == 132;

    const int read = kvd_device_state_read(0, &state, &err);
    test_result(read == 0 && (isnan(state.sm_clock_mhz) ||
                              (state.sm_clock_mhz > 0.0 && state.temperature_c > 0.0)),
                "state", "SM %.0f MHz, memory %.0f MHz, %.0f C, reasons 0x%llx", state.sm_clock_mhz,
                state.mem_clock_mhz, state.temperature_c, (unsigned long long)state.throttle);

    int failed = kvd_ceiling_copy(0, &c, &err);
    check_rate("copy", "GB/s", 1e9, &c, or_zero(4257.0, h200), failed, &err);
    failed = kvd_ceiling_read(0, &c, &err);
    check_rate("read", "GB/s", 1e9, &c, or_zero(4630.0, h200), failed, &err);
    failed = kvd_ceiling_ex2(&c, &err);
    check_rate("ex2", "G/s", 1e9, &c, or_zero(4150.0, h200), failed, &err);
    if (!failed) {
        const double per_clock = c.best / (double)info.n_sms / (c.sm_clock_mhz * 1e6);
        test_result(!h200 || (per_clock > 15.0 && per_clock < 16.5), "ex2 per clock and SM", "%.2f",
                    per_clock);
    }
    failed = kvd_ceiling_gemm(0, &c, &err);
    check_rate("gemm 8192", "TFLOP/s", 1e12, &c, or_zero(790.0, h200), failed, &err);

    failed = kvd_ceiling_copy(24, &c, &err);
    test_result(failed && strstr(err.msg, "24 bytes"), "refuses 24 bytes", "%s", err.msg);
    failed = kvd_ceiling_gemm(100, &c, &err);
    test_result(failed && strstr(err.msg, "size 100"), "refuses size 100", "%s", err.msg);
    failed = kvd_device_read(1000, &info, &err);
    test_result(failed && strstr(err.msg, "device 1000"), "refuses device 1000", "%s", err.msg);
    kvd_clock_stamp *const none = need(2 * sizeof *none);
    test_result(isnan(kvd_clock_between(none, none + 1)), "no stamps", "NaN");
    free(none);
    return failures != 0;
}
