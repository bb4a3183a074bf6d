/*
 * Every model family against numbers that Hugging Face Transformers computed from small random
 * checkpoints of its own making (tests/oracle/make_family_fixtures.py), and against the
 * double-precision reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "forward_case.h"

static const char folder[] = "tests/data/families";

/* A test whose state is a folder's name. */
static void test_transformers(void **state)
{
    const char *name = *state;
    char model[256], expected[300];
    (void)snprintf(model, sizeof model, "%s/%s", folder, name);
    (void)snprintf(expected, sizeof expected, "%s/expected.safetensors", model);
    worst = 0;
    compare_with_transformers(model, expected);
    print_message("%s: %.2g off Transformers at most\n", name, worst);
    compare_with_reference(name, model, 37);
}

#define FAMILY(name)                                                                                         \
    {                                                                                                        \
        name, test_transformers, NULL, NULL, (void *)(uintptr_t)name                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAMILY("llama-biases"), FAMILY("mistral-window"), FAMILY("mistral-full"), FAMILY("qwen2-gqa"),
        FAMILY("qwen2-window"), FAMILY("qwen3-gqa"),      FAMILY("qwen3-mqa"),    FAMILY("phi3-short"),
        FAMILY("phi3-long"),    FAMILY("phi3-window"),    FAMILY("opt-before"),   FAMILY("opt-after"),
        FAMILY("opt-nobias"),   FAMILY("falcon-7b"),      FAMILY("falcon-40b"),   FAMILY("falcon-11b"),
        FAMILY("falcon-mha"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
