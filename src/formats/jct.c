#include "formats/jct.h"

#include <math.h>
#include <string.h>

static bool equal(double a, double b)
{
    return !(a < b) && !(b < a);
}

bool kvd_jct_comparable(const kvd_rows *r, size_t a, size_t b, const char *length)
{
    static const char *const same[] = {"batch", "input", "output", "chunk", "gpus", "graphs", "phases"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i], length) && !equal(kvd_row_real(r, a, same[i]), kvd_row_real(r, b, same[i])))
            return false;
    return !strcmp(kvd_row_text(r, a, "kind"), "job") && !strcmp(kvd_row_text(r, b, "kind"), "job") &&
           !strcmp(kvd_row_text(r, a, "dtype"), kvd_row_text(r, b, "dtype"));
}

size_t kvd_jct_uncompressed(const kvd_rows *r, size_t row)
{
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (!strcmp(kvd_row_text(r, i, "name"), "none") && kvd_jct_comparable(r, row, i, ""))
            return i;
    return SIZE_MAX;
}

/* Seconds that the row's method saves against none at the row's lengths. NaN without a row of none. */
static double gain(const kvd_rows *r, size_t row)
{
    const size_t none = kvd_jct_uncompressed(r, row);
    return none == SIZE_MAX ? (double)NAN : kvd_row_real(r, none, "jct_s") - kvd_row_real(r, row, "jct_s");
}

double kvd_jct_break_even(const kvd_rows *r, size_t row, bool output)
{
    const char *const length = output ? "output" : "input";
    double from = (double)NAN, before = (double)NAN, answer = (double)NAN;
    /* Upwards through the lengths that were measured; a later loss takes the answer back. */
    for (;;) {
        size_t next = SIZE_MAX;
        for (size_t i = 0; i < kvd_rows_count(r); i++) {
            const double at = kvd_row_real(r, i, length);
            if (kvd_jct_comparable(r, row, i, length) &&
                !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method")) && !isnan(gain(r, i)) &&
                (isnan(from) || at > from) && (next == SIZE_MAX || at < kvd_row_real(r, next, length)))
                next = i;
        }
        if (next == SIZE_MAX)
            return answer;
        const double at = kvd_row_real(r, next, length), won = gain(r, next);
        if (!(won > 0))
            answer = (double)NAN;
        else if (isnan(answer))
            answer = isnan(from) ? at : from + (at - from) * -before / (won - before);
        from = at;
        before = won;
    }
}

size_t kvd_jct_lengths(const kvd_rows *r, size_t row, bool output)
{
    size_t n = 0;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        n += kvd_jct_comparable(r, row, i, output ? "output" : "input") &&
             !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method"));
    return n;
}

bool kvd_jct_first_of_lengths(const kvd_rows *r, size_t row, bool output)
{
    const char *const length = output ? "output" : "input";
    if (strcmp(kvd_row_text(r, row, "kind"), "job"))
        return false;
    for (size_t i = 0; i < row; i++)
        if (kvd_jct_comparable(r, row, i, length) &&
            !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method")))
            return false;
    return true;
}
