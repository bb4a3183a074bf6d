/* Formats the lines in which kvdim-jct prints its results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "serving/jct/jct_rows.h"

const char kvd_jct_heading[] =
    "kind      method                     batch   input  output      JCT/s     TTFT/s "
    "  TBT/ms  p99/ms    token/s  attention  residue  byte/token";

const char kvd_jct_legend[] =
    "JCT: job completion time, of the median run; TTFT: time to the first token; TBT, p99: mean and "
    "99 % quantile of the time between tokens\n"
    "attention: share of JCT; residue: share of JCT that no timed part has; byte/token: bytes per "
    "token that the cache stores";

const char *kvd_jct_line(const kvd_rows *r, size_t i, char line[KVD_JCT_LINE])
{
    char jct[16], ttft[16], mean[16], p99[16], rate[16], share[16], residue[16], bytes[16];
    const char *const kind = kvd_row_text(r, i, "kind");
    if (!strcmp(kind, "iteration")) {
        const bool piece = kvd_row_real(r, i, "piece") > 0;
        snprintf(line, KVD_JCT_LINE, "%-9s %-24s %7.0f   %s of %.0f after %.0f: %.6f s", kind,
                 kvd_row_text(r, i, "method"), kvd_row_real(r, i, "batch"),
                 piece ? "piece" : "step",
                 piece ? kvd_row_real(r, i, "piece") : kvd_row_real(r, i, "batch"),
                 piece ? kvd_row_real(r, i, "before") : kvd_row_real(r, i, "context"),
                 kvd_row_real(r, i, "seconds"));
        return line;
    }
    const double attention =
        kvd_row_real(r, i, "prefill_prefill_s") + kvd_row_real(r, i, "prefill_decode_s") +
        kvd_row_real(r, i, "decode_decode_s") + kvd_row_real(r, i, "decode_prefill_s");
    snprintf(line, KVD_JCT_LINE,
             "%-9s %-24s %7.0f %7.0f %7.0f %10s %10s %8s %7s %10s %10s %8s %11s", kind,
             kvd_row_text(r, i, "method"), kvd_row_real(r, i, "batch"), kvd_row_real(r, i, "input"),
             kvd_row_real(r, i, "output"),
             kvd_real_text(jct, sizeof jct, "%.5f", kvd_row_real(r, i, "jct_s")),
             kvd_real_text(ttft, sizeof ttft, "%.5f", kvd_row_real(r, i, "ttft_s")),
             kvd_real_text(mean, sizeof mean, "%.3f", kvd_row_real(r, i, "tbt_mean_s") * 1e3),
             kvd_real_text(p99, sizeof p99, "%.3f", kvd_row_real(r, i, "tbt_p99_s") * 1e3),
             kvd_real_text(rate, sizeof rate, "%.1f", kvd_row_real(r, i, "tokens_per_s")),
             kvd_real_text(share, sizeof share, "%.3f", attention / kvd_row_real(r, i, "jct_s")),
             kvd_real_text(residue, sizeof residue, "%.4f", kvd_row_real(r, i, "residue_share")),
             kvd_real_text(bytes, sizeof bytes, "%.0f", kvd_row_real(r, i, "bytes_per_token")));
    return line;
}

/* Formats mean, median and 99 % quantile of a column over all requests of a method. */
static const char *spread(const kvd_rows *r, const char *method, const char *column, double *x,
                          char to[96])
{
    size_t n = 0;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (!strcmp(kvd_row_text(r, i, "kind"), "request") &&
            !strcmp(kvd_row_text(r, i, "method"), method) && !isnan(kvd_row_real(r, i, column)))
            x[n++] = kvd_row_real(r, i, column);
    if (n)
        snprintf(to, 96, "%.4g s (median %.4g, p99 %.4g)", kvd_mean(x, n), kvd_quantile(x, n, 0.5),
                 kvd_quantile(x, n, 0.99));
    else
        snprintf(to, 96, "-");
    return to;
}

const char *kvd_jct_requests_line(const kvd_rows *r, const char *method, char line[KVD_JCT_LINE])
{
    char ttft[96], tbt[96], jct[96];
    double end = 0;
    size_t n = 0;
    double *const x = malloc((kvd_rows_count(r) + 1) * sizeof *x);
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (!strcmp(kvd_row_text(r, i, "kind"), "request") &&
            !strcmp(kvd_row_text(r, i, "method"), method)) {
            n++;
            end = fmax(end, kvd_row_real(r, i, "arrival_s") + kvd_row_real(r, i, "jct_s"));
        }
    snprintf(line, KVD_JCT_LINE, "%.80s: %zu requests in %.4g s", method, n, end);
    if (x)
        snprintf(line, KVD_JCT_LINE,
                 "%.60s: %zu requests in %.4g s; TTFT %.60s; TBT %.60s; JCT %.60s", method, n, end,
                 spread(r, method, "ttft_s", x, ttft), spread(r, method, "tbt_mean_s", x, tbt),
                 spread(r, method, "jct_s", x, jct));
    free(x);
    return line;
}
