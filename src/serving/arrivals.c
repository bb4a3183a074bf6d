#include "serving/arrivals.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/args.h"

int kvd_arrivals_parse(const char *text, kvd_arrivals *a, kvd_err *err)
{
    static const char poisson[] = "poisson:";
    char rate[32];
    if (kvd_arg_once("--trace", text, &a->text, err))
        return -1;
    a->rate = NAN;
    if (strncmp(text, poisson, sizeof poisson - 1) != 0)
        return 0;
    text += sizeof poisson - 1;
    const size_t n = strcspn(text, ":");
    snprintf(rate, sizeof rate, "%.*s", (int)(n < sizeof rate ? n : sizeof rate - 1), text);
    a->lengths = text[n] ? text + n + 1 : "arxiv";
    if (!*a->lengths)
        return kvd_fail(err, "--trace %s: no lengths behind the last colon", a->text);
    return kvd_arg_double("--trace poisson:RATE", rate, 1e-9, 1e9, &a->rate, err);
}

int kvd_arrivals_inputs(const kvd_arrivals *a, kvd_run *run, kvd_err *err)
{
    if (!a->text)
        return 0;
    if (isnan(a->rate))
        return kvd_run_add_input(run, a->text, err);
    return kvd_requests_lengths_from_file(a->lengths) ? kvd_run_add_input(run, a->lengths, err) : 0;
}

int kvd_arrivals_load(const kvd_arrivals *a, size_t n, size_t usual, uint64_t seed, kvd_requests *r,
                      kvd_err *err)
{
    if (!isnan(a->rate))
        return kvd_requests_poisson(r, a->rate, n ? n : usual, a->lengths, seed, err);
    return kvd_requests_read(r, a->text, err) || (n && kvd_requests_first(r, n, err)) ? -1 : 0;
}
