#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/checkpoint/safetensors.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static const char *folder;
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder();
    (void)snprintf(path, sizeof path, "%s/x.safetensors", folder);
    return 0;
}

static size_t bytes_of(const kvd_tensor_spec *s)
{
    size_t n = 0;
    OK(kvd_tensor_spec_bytes(s, &n, &err));
    return n;
}

/* Returns n bytes that differ from tensor to tensor (i). */
static unsigned char *made_bytes(size_t i, size_t n)
{
    unsigned char *const b = unit_alloc(n);
    for (size_t k = 0; k < n; k++)
        b[k] = (unsigned char)(k * 7 + i * 31 + 1);
    return b;
}

TEST(test_round_trip)
{
    kvd_tensor_spec spec[] = {{"b", "BF16", 2, {3, 5}},      {"f", "F32", 4, {2, 1, 3, 2}},
                              {"scalar", "F32", 0, {0}},     {"none", "F16", 2, {4, 0}},
                              {"last none", "U8", 1, {0}},   {"long", "I64", 1, {3}},
                              {"byte", "BOOL", 1, {5}},      {"na\"me\n\xc3\xa4", "F16", 1, {7}},
                              {"first none", "F64", 1, {0}}, {"eight", "F8_E4M3", 2, {2, 2}}};
    enum { N = sizeof spec / sizeof *spec };
    const kvd_safetensors_note notes[] = {{"format", "pt"}, {"who", "a \"quote\""}, {NULL, NULL}};
    qsort(spec, N, sizeof *spec, kvd_tensor_spec_order);
    for (size_t piece = 1; piece <= 64; piece *= 8) {
        (void)unlink(path);
        kvd_safetensors_writer *const w = kvd_safetensors_create(path, spec, N, notes, &err);
        assert_non_null(w);
        for (size_t i = 0; i < N; i++) {
            const size_t n = bytes_of(&spec[i]);
            unsigned char *const b = made_bytes(i, n);
            for (size_t at = 0; at < n; at += piece)
                OK(kvd_safetensors_append(w, spec[i].name, b + at, n - at < piece ? n - at : piece,
                                          &err));
        }
        OK(kvd_safetensors_finish(w, &err));

        kvd_safetensors *const s = kvd_safetensors_open(path, &err);
        if (!s)
            fail_msg("%s", err.msg);
        assert_int_equal(kvd_safetensors_count(s), N);
        const char *value = NULL;
        assert_string_equal(kvd_safetensors_metadata(s, 0, &value), "format");
        assert_string_equal(kvd_safetensors_metadata(s, 1, &value), "who");
        assert_string_equal(value, "a \"quote\"");
        assert_null(kvd_safetensors_metadata(s, 2, &value));
        for (size_t i = 0; i < N; i++) {
            kvd_tensor_spec t = {0};
            const void *data = NULL;
            size_t n = 0, k = 0;
            while (k < N && strcmp(kvd_safetensors_name(s, k), spec[i].name))
                k++;
            assert_true(k < N);
            kvd_safetensors_stored(s, k, &t, &data, &n);
            assert_string_equal(t.dtype, spec[i].dtype);
            assert_int_equal(t.rank, spec[i].rank);
            assert_memory_equal(t.dims, spec[i].dims, (size_t)t.rank * sizeof *t.dims);
            assert_memory_equal(data, made_bytes(i, n), n);
        }
        kvd_safetensors_close(s);
    }
}

/* The writer must put tensors with wide elements first, so that all tensors are aligned. */
TEST(test_alignment)
{
    kvd_tensor_spec spec[] = {{"a", "BF16", 1, {3}},
                              {"b", "F32", 1, {1}},
                              {"c", "U8", 1, {1}},
                              {"d", "F64", 1, {1}},
                              {"aa", "F16", 1, {1}}};
    enum { N = sizeof spec / sizeof *spec };
    qsort(spec, N, sizeof *spec, kvd_tensor_spec_order);
    const char *const order[N] = {"d", "b", "a", "aa", "c"};
    for (size_t i = 0; i < N; i++)
        assert_string_equal(spec[i].name, order[i]);
    (void)unlink(path);
    kvd_safetensors_writer *const w = kvd_safetensors_create(path, spec, N, NULL, &err);
    assert_non_null(w);
    for (size_t i = 0; i < N; i++) {
        const char zeros[8] = {0};
        OK(kvd_safetensors_append(w, spec[i].name, zeros, bytes_of(&spec[i]), &err));
    }
    OK(kvd_safetensors_finish(w, &err));
    size_t bytes;
    const unsigned char *const length = unit_read(path, &bytes);
    assert_int_equal(length[0] % 8, 0);
    kvd_safetensors *const s = kvd_safetensors_open(path, &err);
    assert_non_null(s);
    for (size_t i = 0; i < N; i++) {
        kvd_tensor_spec t;
        const void *data;
        size_t n;
        kvd_safetensors_stored(s, i, &t, &data, &n);
        assert_int_equal((uintptr_t)data % (kvd_safetensors_bits(t.dtype) / 8), 0);
    }
    kvd_safetensors_close(s);
}

static void refused(const kvd_tensor_spec *spec, size_t n, const char *message)
{
    (void)unlink(path);
    assert_null(kvd_safetensors_create(path, spec, n, NULL, &err));
    assert_string_equal(err.msg, message);
}

TEST(test_refuses_headers)
{
    const size_t huge = SIZE_MAX / 8;
    refused((kvd_tensor_spec[]){{"", "F32", 0, {0}}}, 1, "a tensor cannot be called ''");
    refused((kvd_tensor_spec[]){{"__metadata__", "F32", 0, {0}}}, 1,
            "a tensor cannot be called '__metadata__'");
    refused((kvd_tensor_spec[]){{"a", "F33", 0, {0}}}, 1, "tensor 'a': unknown dtype 'F33'");
    refused((kvd_tensor_spec[]){{"a", "F32", 5, {0}}}, 1,
            "tensor 'a': 5 dimensions, at most 4 are supported");
    refused((kvd_tensor_spec[]){{"a", "F4", 1, {3}}}, 1,
            "tensor 'a': its F4 elements are not whole bytes");
    refused((kvd_tensor_spec[]){{"a", "F32", 0, {0}}, {"a", "F32", 0, {0}}}, 2,
            "tensor 'a' is there twice");
    refused((kvd_tensor_spec[]){{"b", "F32", 0, {0}}, {"a", "F32", 0, {0}}}, 2,
            "tensor 'a' is out of order");
    refused((kvd_tensor_spec[]){{"a", "F32", 2, {huge, 2}}}, 1,
            "tensor 'a': its size overflows at shape[0] = 2305843009213693951");
    refused((kvd_tensor_spec[]){{"\xff", "F32", 0, {0}}}, 1,
            "tensor '?': its name is not UTF-8, or memory ran out");
}

TEST(test_refuses_data)
{
    const kvd_tensor_spec spec[] = {{"a", "F32", 1, {2}}, {"b", "F32", 1, {1}}};
    const float x[4] = {1, 2, 3, 4};
    char want[200];
    (void)unlink(path);
    kvd_safetensors_writer *w = kvd_safetensors_create(path, spec, 2, NULL, &err);
    assert_non_null(w);
    assert_int_equal(kvd_safetensors_append(w, "b", x, 4, &err), -1);
    (void)snprintf(want, sizeof want, "'%s': 4 bytes of tensor 'b' are given, 8 of 'a' are next",
                   path);
    assert_string_equal(err.msg, want);
    assert_int_equal(kvd_safetensors_append(w, "a", x, 12, &err), -1);
    OK(kvd_safetensors_append(w, "a", x, 8, &err));
    assert_int_equal(kvd_safetensors_finish(w, &err), -1);
    (void)snprintf(want, sizeof want, "'%s': 4 bytes of tensor 'b' were not given", path);
    assert_string_equal(err.msg, want);

    assert_null(kvd_safetensors_create(path, spec, 2, NULL, &err));
    (void)snprintf(want, sizeof want, "cannot create '%s': File exists", path);
    assert_string_equal(err.msg, want);
    kvd_safetensors_abandon(NULL);
}

TEST_MAIN(make_folder, NULL)
