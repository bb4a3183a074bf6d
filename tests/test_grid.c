/* One text for many methods: what combinations come out, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "methods/grid.h"

static void expands(const char *text, const char *const *want, size_t n_want)
{
    char **texts;
    size_t n;
    kvd_err err;
    assert_int_equal(kvd_method_grid(text, 100, &texts, &n, &err), 0);
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(texts[i], want[i]);
    kvd_method_grid_free(texts, n);
}

static void combinations(void **state)
{
    (void)state;
    const char *const one[] = {"zack,p=0.5"}, *const none[] = {"none"};
    const char *const two[] = {"kivi,bits=2", "kivi,bits=4"};
    const char *const four[] = {"leankv,th=0.1,tl=0,k=4", "leankv,th=0.1,tl=0.01,k=4",
                                "leankv,th=0.05,tl=0,k=4", "leankv,th=0.05,tl=0.01,k=4"};
    expands("zack,p=0.5", one, 1);
    expands("none", none, 1);
    expands("kivi,bits=2/4", two, 2);
    expands("leankv,th=0.1/0.05,tl=0/0.01,k=4", four, 4);
}

/* Every combination once, whatever the numbers of values. */
static void all_different(void **state)
{
    (void)state;
    char **texts;
    size_t n;
    kvd_err err;
    assert_int_equal(kvd_method_grid("a,b=1/2/3,c=4/5,d=6/7/8/9", 24, &texts, &n, &err), 0);
    assert_int_equal(n, 24);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(strlen(texts[i]), strlen("a,b=1,c=4,d=6"));
        for (size_t j = 0; j < i; j++)
            assert_true(strcmp(texts[i], texts[j]) != 0);
    }
    kvd_method_grid_free(texts, n);
}

static void refusals(void **state)
{
    (void)state;
    const struct {
        const char *text, *says;
    } bad[] = {{"a,b=1/2/3,c=1/2/3,d=1/2/3", "more than 26"},
               {"a,b=1//2", "empty value"},
               {"a,b=/2", "empty value"},
               {"a,b=1/", "empty value"},
               {"a/b", "values of a key"},
               {"a,b/c=1", "values of a key"},
               {"/", "values of a key"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char **texts;
        size_t n;
        kvd_err err;
        assert_int_equal(kvd_method_grid(bad[i].text, 26, &texts, &n, &err), -1);
        assert_non_null(strstr(err.msg, bad[i].says));
    }
}

static void lists(void **state)
{
    (void)state;
    static const char *const list[] = {"none,zack,p=0.5,ranks=error,h2o+kivi",
                                       "zack,p=0.5,ranks=error,h2o+kivi",
                                       "h2o+kivi",
                                       "",
                                       ",zack",
                                       "zack,"};
    static const size_t length[] = {4, 22, 8, 0, 0, 4};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        assert_int_equal(kvd_method_text_length(list[i]), length[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(combinations), cmocka_unit_test(all_different),
                                       cmocka_unit_test(refusals), cmocka_unit_test(lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
