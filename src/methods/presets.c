#include "methods/presets.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/args.h"

const char *const kvd_ranks_name[3] = {"eq6", "eq6-energy", "error"};

static const kvd_dims_method *const methods[] = {&kvd_dims_zack, &kvd_dims_fdc, &kvd_dims_uniform,
                                                 &kvd_dims_balanced};
enum { N_METHODS = sizeof methods / sizeof *methods };

int kvd_method_count(void)
{
    return N_METHODS;
}

const kvd_dims_method *kvd_method_at(int i)
{
    assert(i >= 0 && i < N_METHODS);
    return methods[i];
}

const char *kvd_method_name(const kvd_method *m)
{
    return m->dims ? m->dims->name : "none";
}

static int find(const char *name, kvd_method *m, kvd_err *err)
{
    m->dims = NULL;
    if (!strcmp(name, "none"))
        return 0;
    for (int i = 0; i < N_METHODS; i++)
        if (!strcmp(name, methods[i]->name)) {
            m->dims = methods[i];
            return 0;
        }
    char known[256] = "none";
    for (int i = 0; i < N_METHODS; i++) {
        strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, methods[i]->name, sizeof known - strlen(known) - 1);
    }
    return kvd_fail(err, "unknown method '%s', known are %s", name, known);
}

static int set(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err)
{
    const char *const keys[] = {"p", "r", "ranks"};
    unsigned bit = 0;
    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(key, keys[i]))
            bit = 1U << i;
    if (!bit)
        return kvd_fail(err, "unknown key '%s', known are p, r, ranks", key);
    if (*seen & bit)
        return kvd_fail(err, "key '%s' is given twice", key);
    *seen |= bit;
    if (bit == 4) {
        for (int i = 0; i < 3; i++)
            if (!strcmp(value, kvd_ranks_name[i])) {
                m->ranks = (kvd_ranks)i;
                return 0;
            }
        return kvd_fail(err, "ranks '%s' is none of eq6, eq6-energy, error", value);
    }
    double *const to = bit == 1 ? &m->p : &m->r;
    if (kvd_arg_double(key, value, 0, 1, to, err))
        return -1;
    if (*to >= 1)
        return kvd_fail(err, "%s = %s removes everything, it must be below 1", key, value);
    return 0;
}

static int check(const kvd_method *m, unsigned seen, kvd_err *err)
{
    if (!m->dims && seen)
        return kvd_fail(err, "it takes no key");
    if ((seen & 3) == 3)
        return kvd_fail(err, "p and r exclude each other");
    if (m->dims && m->dims->one_p && (seen & 6))
        return kvd_fail(err, "it takes only p: its widths do not depend on the spectrum");
    if (m->ranks == KVD_RANKS_ERROR && (seen & 2))
        return kvd_fail(err, "ranks=error takes p, a removal rate r belongs to Eq. 6");
    return 0;
}

int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err)
{
    char copy[256];
    *m = (kvd_method){NULL, NAN, NAN, KVD_RANKS_EQ6};
    if (strlen(text) >= sizeof copy)
        return kvd_fail(err, "method text of %zu characters is too long", strlen(text));
    strcpy(copy, text);
    char *rest = copy;
    const char *const name = strsep(&rest, ",");
    if (find(name, m, err))
        return -1;
    unsigned seen = 0;
    while (rest) {
        char *value = strsep(&rest, ",");
        const char *const key = strsep(&value, "=");
        if (!value)
            return kvd_fail(err, "method '%s': '%s' is not key=value", name, key);
        if (set(m, key, value, &seen, err))
            return kvd_in(err, "method '%s'", name);
    }
    if (check(m, seen, err))
        return kvd_in(err, "method '%s'", name);
    return 0;
}
