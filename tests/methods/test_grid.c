/*
 * Tests of option --method: lists of methods, combinations of parameter values, and refused text.
 */
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"
#include "unit.h"

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

TEST(all_different)
{
    assert_int_equal(
        kvd_methods_add("kivi,bits=1/2/3,group=4/5,residual=6/7/8/9", NULL, text, &n, 24, &err), 0);
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
