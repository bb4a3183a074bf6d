#include "common/progress.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"

static const double every_terminal = 0.2, every_line = 5, worth_a_last_line = 1;

/* Writes a time in seconds as a clock shows it: 75 s as "1:15", 3700 s as "1:01:40". */
static void clock_text(double s, char *text, size_t size)
{
    const long n = s < 360000 ? lround(s) : 360000;
    if (n >= 3600)
        (void)snprintf(text, size, "%ld:%02ld:%02ld", n / 3600, n / 60 % 60, n % 60);
    else
        (void)snprintf(text, size, "%ld:%02ld", n / 60, n % 60);
}

/* Returns true if x is a whole number but for rounding errors. */
static bool is_whole(double x)
{
    return fabs(x - nearbyint(x)) < 1e-6;
}

static void print(const kvd_progress *p, double t, bool last)
{
    enum { WIDTH = 24 };
    const double spent = t - p->started;
    const double rate = spent > 0 ? p->done / spent : 0;
    char took[24], left[24] = "?", bar[WIDTH + 1];
    clock_text(spent, took, sizeof took);
    if (rate > 0 && p->total > 0)
        clock_text(fmax(p->total - p->done, 0) / rate, left, sizeof left);
    if (p->terminal)
        fputc('\r', stderr);
    fprintf(stderr, "%s: ", p->what);
    if (p->total > 0) {
        const double part = fmin(fmax(p->done / p->total, 0), 1);
        if (p->terminal) {
            for (int i = 0; i < WIDTH; i++)
                bar[i] = (double)i < part * WIDTH ? '#' : '.';
            bar[WIDTH] = '\0';
            fprintf(stderr, "[%s] ", bar);
        }
        /* Shows a fraction of a unit with one decimal, for example "0.8 of 2 points". */
        fprintf(stderr, "%.*f of %.0f %s (%.0f %%), ", is_whole(p->done) ? 0 : 1, p->done, p->total,
                p->unit, 100 * part);
    } else {
        fprintf(stderr, "%.0f %s, ", p->done, p->unit);
    }
    fprintf(stderr, rate < 10 ? "%.2f %s/s, " : "%.0f %s/s, ", rate, p->unit);
    if (last)
        fprintf(stderr, "took %s", took);
    else if (p->total > 0)
        fprintf(stderr, "%s left", left);
    else
        fprintf(stderr, "%s so far", took);
    /* "\033[K" clears the rest of a longer earlier line on a terminal. */
    fputs(p->terminal ? "\033[K" : "\n", stderr);
    if (p->terminal && last)
        fputc('\n', stderr);
    fflush(stderr);
}

void kvd_progress_start(kvd_progress *p, const char *what, const char *unit, double total,
                        bool quiet)
{
    *p = (kvd_progress){.what = what, .unit = unit, .total = total, .quiet = quiet};
    p->terminal = isatty(STDERR_FILENO) == 1;
    p->started = p->shown = kvd_clock_s();
}

void kvd_progress_step(kvd_progress *p, double done)
{
    p->done = done;
    if (p->total > 0)
        p->total = fmax(p->total, done);
    if (p->quiet)
        return;
    const double t = kvd_clock_s();
    if (t - p->shown < (p->terminal ? every_terminal : every_line))
        return;
    p->shown = t;
    print(p, t, false);
}

void kvd_progress_end(kvd_progress *p)
{
    const double t = kvd_clock_s();
    if (!p->quiet && (p->shown > p->started || t - p->started > worth_a_last_line))
        print(p, t, true);
}
