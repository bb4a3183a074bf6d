/* Tests the parser of option --method, and the choice of the parameter that trades bytes for
 * quality. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"
#include "methods/method.h"
#include "unit.h"

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

TEST(test_which)
{
    const struct {
        /* method, requested parameter (NULL: none), and the parameter that must be chosen (NULL: an
         * error must be returned) */
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

enum { MOST = 26 };
static char *text[MOST];
static size_t n;
static kvd_err err;

static void release(void)
{
    while (n)
        free(text[--n]);
}

static void expands(const char *spec, const char *const *want, size_t n_want)
{
    static kvd_method method[MOST];
    assert_int_equal(kvd_methods_add(spec, method, text, &n, MOST, &err), 0);
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(text[i], want[i]);
        assert_int_equal(
            strncmp(text[i], kvd_method_name(&method[i]), strlen(kvd_method_name(&method[i]))), 0);
    }
    release();
}

TEST(combinations)
{
    const char *const one[] = {"zack,p=0.5"}, *const none[] = {"none"};
    const char *const two[] = {"kivi,bits=2", "kivi,bits=4"};
    const char *const four[] = {"leankv,th=0.1,tl=0,k=4", "leankv,th=0.1,tl=0.01,k=4",
                                "leankv,th=0.05,tl=0,k=4", "leankv,th=0.05,tl=0.01,k=4"};
    expands("zack,p=0.5", one, 1);
    expands("none", none, 1);
    expands("kivi,bits=2/4", two, 2);
    expands("leankv,th=0.1/0.05,tl=0/0.01,k=4", four, 4);
}

static void changed(const char *method, const char *always, const char *wanted)
{
    kvd_method m;
    char settings[KVD_SETTINGS];
    if (kvd_method_parse(method, &m, &err))
        fail_msg("%s: %s", method, err.msg);
    assert_string_equal(
        kvd_method_changed_settings(kvd_method_name(&m), m.settings, always, settings), wanted);
}

TEST(settings_of_a_row)
{
    changed("none", "", "");
    changed("zack,p=0.5", "p", "");
    changed("kivi", "", "");
    changed("kivi", "kivi.bits", "bits=2");
    changed("kivi,bits=2,group=64", "", "group=64");
    changed("h2o+kivi,bits=4,heavy=0.2", "kivi.bits", "h2o.heavy=0.2,kivi.bits=4");
    changed("zack,p=0.5,cut=qk,keep_layers=1:1", "p", "cut=qk,keep_layers=1:1");
}

TEST(keys_before_a_second_name)
{
    static const struct {
        const char *method, *hint;
    } all[] = {
        {"snapkv,budget=0.25+kivi", "; names come before keys: snapkv+kivi,budget=0.25"},
        {"snapkv,budget=0.1+kivi,bits=4", ": snapkv+kivi,budget=0.1,bits=4"},
        {"snapkv,budget=0.1+kivi,bits=4+zack,p=0.5", ": snapkv+kivi+zack,budget=0.1,bits=4,p=0.5"},
        {"h2o,heavy=0.1+recent=0.1", NULL},
        {"h2o,heavy=0.1+snapkv", NULL},
        {"kvtc,bits=2+h2o", NULL},
        {"xquant,bits=4+zack,p=0.5", NULL},
        {"h2o,heavy=1e+99", NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kvd_method m;
        assert_int_equal(kvd_method_parse(all[i].method, &m, &err), -1);
        if (all[i].hint)
            assert_string_equal(strstr(err.msg, *all[i].hint == ';' ? "; names" : ": snapkv+"),
                                all[i].hint);
        else
            assert_null(strstr(err.msg, "names come"));
    }
}

TEST(blanks_around_signs)
{
    const char *const all[] = {"zack, p=0.5", "zack ,p=0.5", " zack,p =0.5", "zack,p= 0.5 "};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        n = 0;
        assert_int_equal(kvd_methods_add(all[i], NULL, text, &n, 24, &err), -1);
        assert_non_null(strstr(err.msg, all[i]));
        assert_non_null(strstr(err.msg, ": write it without blanks: 'zack,p=0.5'"));
    }
    OK(kvd_methods_add("projected,file=a b/c d.h5", NULL, text, &n, 24, &err));
    release();
}

TEST(all_different)
{
    OK(kvd_methods_add("kivi,bits=1/2/3,group=4/5,residual=6/7/8/9", NULL, text, &n, 24, &err));
    assert_int_equal(n, 24);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(strlen(text[i]), strlen("kivi,bits=1,group=4,residual=6"));
        for (size_t j = 0; j < i; j++)
            assert_true(strcmp(text[i], text[j]) != 0);
    }
    release();
}

TEST(lists)
{
    static const char *const names[] = {"none", "zack", "fdc"}, *const mixed[] = {
                                                                    "none",
                                                                    "zack,p=0.5,ranks=error",
                                                                    "h2o+kivi,bits=2",
                                                                    "h2o+kivi,bits=4", "fdc,r=0.1"};
    expands("none,zack,fdc", names, 3);
    expands("none,zack,p=0.5,ranks=error,h2o+kivi,bits=2/4,fdc,r=0.1", mixed, 5);
}

TEST(refusals)
{
    static const struct {
        const char *spec, *says;
    } bad[] = {{"kivi,bits=1/2/3,group=1/2/3,residual=1/2/3", "at most 26 can be given"},
               {"kivi,bits=1//2", "empty value"},
               {"kivi,bits=/2", "empty value"},
               {"kivi,bits=1/", "empty value"},
               {"kivi,b/c=1", "separate values of a key"},
               {"", "a name is missing"},
               {",zack", "a name is missing"},
               {"zack,", "a name is missing"},
               {"zack,,none", "a name is missing"},
               {"h2o+", "a name is missing"},
               {"p=0.5", "'p=0.5' has no method before it"},
               {"zack,p", "'p' is neither a method nor KEY=VALUE"},
               {"none,zakc", "'zakc' is neither a method nor KEY=VALUE; nearest: zack; "
                             "--list-methods lists all methods"},
               {"TOVA", "nearest: tova; "},
               {"h2o+kiwi,bits=2", "nearest: kivi"},
               {"zack,p=0.5,none,zack,p=0.5", "'zack,p=0.5' is given twice"},
               {"kivi,bits=2/2", "'kivi,bits=2' is given twice"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kvd_methods_add(bad[i].spec, NULL, text, &n, MOST, &err), -1);
        assert_non_null(strstr(err.msg, bad[i].says));
        release();
    }
}

TEST_MAIN(NULL, NULL)
