/* Tests of each method's parameter that trades bytes for quality. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "methods/method.h"
#include "unit.h"

/*
 * Every method must have a parameter that trades bytes for quality, except formats of fixed width.
 */
TEST(test_registry)
{
    kvd_method_entry p;
    int n = 0;
    for (int i = 0; kvd_method_entry_at(i, &p); i++, n++) {
        kvd_method m, set, typed;
        kvd_method_tradeoff r;
        kvd_err err = {""};
        assert_int_equal(kvd_method_parse(p.info->name, &m, &err), 0);
        if (strstr("fp8 mxfp4 nvfp4", p.info->name)) {
            assert_int_equal(kvd_method_tradeoff_find(&m, NULL, &r, &err), -1);
            assert_non_null(strstr(err.msg, "has no key that trades bytes for quality"));
            continue;
        }
        assert_int_equal(kvd_method_tradeoff_find(&m, NULL, &r, &err), 0);
        assert_true(r.most < r.least || r.most > r.least);
        for (int k = 0; k <= 8; k++) {
            const double value = kvd_method_tradeoff_at(&r, k / 8.0);
            char text[200];
            assert_true(value >= fmin(r.most, r.least) && value <= fmax(r.most, r.least));
            assert_true(!r.whole || value == nearbyint(value));
            kvd_method_tradeoff_set(&m, &r, value, &set);
            assert_true(kvd_method_tradeoff_value(&set, &r) == value);
            snprintf(text, sizeof text, "%s,%s=%.17g", p.info->name, r.name, value);
            if (*r.with)
                snprintf(text + strlen(text), sizeof text - strlen(text), ",%s=%.17g", r.with,
                         r.at + r.slope * value);
            if (kvd_method_parse(text, &typed, &err))
                fail_msg("%s: %s", text, err.msg);
            assert_string_equal(set.settings, typed.settings);
            assert_true((isnan(set.p) && isnan(typed.p)) || set.p == typed.p);
            assert_true((isnan(set.p_low) && isnan(typed.p_low)) || set.p_low == typed.p_low);
        }
        assert_true(fabs(kvd_method_tradeoff_share(&r, kvd_method_tradeoff_at(&r, 0.5)) - 0.5) <
                    (r.whole ? 0.1 : 1e-4));
    }
    assert_true(n > 20);
}

/*
 * Tests which parameter a sweep varies: that of the method named last, or the one that the caller
 * names. Parameters that the user set must keep their values.
 */
TEST(test_which)
{
    const struct {
        /*
         * `key` is the parameter that the caller names, or NULL. `name` is the parameter that must
         * be varied; NULL: the call must fail.
         */
        const char *method, *key, *name;
    } all[] = {{"h2o+zack", NULL, "p"},
               {"zack+h2o", NULL, "h2o.heavy"},
               {"h2o+zack+kivi", NULL, "kivi.bits"},
               {"h2o+zack+kivi", "p", "p"},
               {"h2o+zack+kivi", "zack.p", "p"},
               {"h2o+zack+kivi", "h2o.heavy", "h2o.heavy"},
               {"h2o+zack+kivi", "heavy", "h2o.heavy"},
               {"leankv", NULL, "sparsity.th"},
               {"sparsity+hetero", NULL, "hetero.k"},
               {"leankv", "hetero.k", "hetero.k"},
               {"zdc", NULL, "p"},
               {"zdc+kivi", NULL, "kivi.bits"},
               {"kivi", "group", NULL},
               {"kivi", "h2o.heavy", NULL},
               {"none", NULL, NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kvd_method m;
        kvd_method_tradeoff r;
        kvd_err err = {""};
        assert_int_equal(kvd_method_parse(all[i].method, &m, &err), 0);
        assert_int_equal(kvd_method_tradeoff_find(&m, all[i].key, &r, &err), all[i].name ? 0 : -1);
        if (all[i].name)
            assert_string_equal(r.name, all[i].name);
        else
            assert_non_null(strstr(err.msg, "trades bytes for quality"));
    }
    kvd_method m, set;
    kvd_method_tradeoff r;
    kvd_err err = {""};
    assert_int_equal(kvd_method_parse("h2o,recent=0.3", &m, &err), 0);
    assert_int_equal(kvd_method_tradeoff_find(&m, NULL, &r, &err), 0);
    kvd_method_tradeoff_set(&m, &r, 0.2, &set);
    assert_string_equal(set.settings, "h2o.heavy=0.2,h2o.recent=0.3");
    assert_int_equal(kvd_method_parse("zdc,p_u=0.8,p=0.1", &m, &err), 0);
    assert_int_equal(kvd_method_tradeoff_find(&m, NULL, &r, &err), 0);
    kvd_method_tradeoff_set(&m, &r, 0.5, &set);
    assert_true(set.p == 0.5 && set.p_low == 0.8);
}

TEST_MAIN(NULL, NULL)
