/* What summaries say of jct rows: the table on stdout, lengths from which on a method pays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "serving/jct_file.h"

static double value(const kvd_rows *r, size_t i, const char *column)
{
    const int c = kvd_rows_find(r, column);
    return c < 0 ? (double)NAN : kvd_rows_get_real(r, i, c);
}

static const char *text(const kvd_rows *r, size_t i, const char *column)
{
    const int c = kvd_rows_find(r, column);
    return c < 0 ? "" : kvd_rows_get_text(r, i, c);
}

static bool equal(double a, double b)
{
    return !(a < b) && !(b < a);
}

/* Whether two job rows differ in nothing but method and that length. */
static bool comparable(const kvd_rows *r, size_t a, size_t b, const char *length)
{
    static const char *const same[] = {"batch", "input", "output", "chunk", "gpus", "graphs", "phases"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i], length) && !equal(value(r, a, same[i]), value(r, b, same[i])))
            return false;
    return !strcmp(text(r, a, "kind"), "job") && !strcmp(text(r, b, "kind"), "job") &&
           !strcmp(text(r, a, "dtype"), text(r, b, "dtype"));
}

/* JCT of none over that of row a, less 1, at the length of row a: above 0 where the method is faster. NaN without such a row. */
static double gain(const kvd_rows *r, size_t a, const char *length)
{
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (comparable(r, a, i, length) && equal(value(r, a, length), value(r, i, length)) &&
            !strcmp(text(r, i, "name"), "none"))
            return value(r, i, "jct_s") - value(r, a, "jct_s");
    return (double)NAN;
}

double kvd_jct_break_even(const kvd_rows *r, size_t row, bool output)
{
    const char *const length = output ? "output" : "input";
    double from = (double)NAN, loss = (double)NAN, answer = (double)NAN;
    /* Upwards through the lengths that were measured; a later loss takes the answer back. */
    for (;;) {
        size_t next = SIZE_MAX;
        for (size_t i = 0; i < kvd_rows_count(r); i++) {
            const double at = value(r, i, length);
            if (comparable(r, row, i, length) && !strcmp(text(r, i, "method"), text(r, row, "method")) &&
                !isnan(gain(r, i, length)) && (isnan(from) || at > from) &&
                (next == SIZE_MAX || at < value(r, next, length)))
                next = i;
        }
        if (next == SIZE_MAX)
            return answer;
        const double at = value(r, next, length), won = gain(r, next, length);
        if (!(won > 0))
            answer = (double)NAN;
        else if (isnan(answer))
            answer = isnan(from) ? at : from + (at - from) * -loss / (won - loss);
        from = at;
        loss = won;
    }
}

const char kvd_jct_heading[] =
    "kind      method                     batch   input  output      JCT/s     TTFT/s "
    "  TBT/ms  p99/ms    token/s  attention  residue  byte/token";

static const char *number(char *to, size_t size, const char *format, double x)
{
    if (isnan(x))
        snprintf(to, size, "-");
    else
        snprintf(to, size, format, x);
    return to;
}

const char *kvd_jct_line(const kvd_rows *r, size_t i, char line[KVD_JCT_LINE])
{
    char jct[16], ttft[16], mean[16], p99[16], rate[16], share[16], residue[16], bytes[16];
    const char *const kind = text(r, i, "kind");
    if (!strcmp(kind, "iteration")) {
        const bool piece = value(r, i, "piece") > 0;
        snprintf(line, KVD_JCT_LINE, "%-9s %-24.24s %7.0f   %s of %.0f behind %.0f: %.6f s", kind,
                 text(r, i, "method"), value(r, i, "batch"), piece ? "piece" : "step",
                 piece ? value(r, i, "piece") : value(r, i, "batch"),
                 piece ? value(r, i, "before") : value(r, i, "context"), value(r, i, "seconds"));
        return line;
    }
    const double attention = value(r, i, "prefill_prefill_s") + value(r, i, "prefill_decode_s") +
                             value(r, i, "decode_decode_s") + value(r, i, "decode_prefill_s");
    snprintf(line, KVD_JCT_LINE, "%-9s %-24.24s %7.0f %7.0f %7.0f %10s %10s %8s %7s %10s %10s %8s %11s", kind,
             text(r, i, "method"), value(r, i, "batch"), value(r, i, "input"), value(r, i, "output"),
             number(jct, sizeof jct, "%.5f", value(r, i, "jct_s")),
             number(ttft, sizeof ttft, "%.5f", value(r, i, "ttft_s")),
             number(mean, sizeof mean, "%.3f", value(r, i, "tbt_mean_s") * 1e3),
             number(p99, sizeof p99, "%.3f", value(r, i, "tbt_p99_s") * 1e3),
             number(rate, sizeof rate, "%.1f", value(r, i, "tokens_per_s")),
             number(share, sizeof share, "%.3f", attention / value(r, i, "jct_s")),
             number(residue, sizeof residue, "%.4f", value(r, i, "residue_share")),
             number(bytes, sizeof bytes, "%.0f", value(r, i, "bytes_per_token")));
    return line;
}

/* Mean, median and 99 % quantile of a column over the request rows of a method. */
static const char *spread(const kvd_rows *r, const char *method, const char *column, double *x, char to[96])
{
    size_t n = 0;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (!strcmp(text(r, i, "kind"), "request") && !strcmp(text(r, i, "method"), method) &&
            !isnan(value(r, i, column)))
            x[n++] = value(r, i, column);
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
        if (!strcmp(text(r, i, "kind"), "request") && !strcmp(text(r, i, "method"), method)) {
            n++;
            end = fmax(end, value(r, i, "arrival_s") + value(r, i, "jct_s"));
        }
    snprintf(line, KVD_JCT_LINE, "%.80s: %zu requests in %.4g s", method, n, end);
    if (x)
        snprintf(line, KVD_JCT_LINE, "%.60s: %zu requests in %.4g s; TTFT %.60s; TBT %.60s; JCT %.60s",
                 method, n, end, spread(r, method, "ttft_s", x, ttft),
                 spread(r, method, "tbt_mean_s", x, tbt), spread(r, method, "jct_s", x, jct));
    free(x);
    return line;
}
