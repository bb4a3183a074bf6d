/* Tests tables of results, which kvdim and h5py must be able to read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/rows.h"
#include "temp_folder.h"
#include "unit.h"

static const kvd_schema schema = {"test-rows", 1, "A table of a test"};

static const kvd_column columns[] = {
    {"method", KVD_COL_TEXT, "1", "name of the method"},
    {"n", KVD_COL_INT, "1", "how many"},
    {"share", KVD_COL_REAL, "1", "a share"},
};

static void write_table(int n)
{
    kvd_err err = {""};
    kvd_h5 f;
    kvd_rows *r = kvd_rows_new(columns, 3, &err);
    assert_non_null(r);
    for (int i = 0; i < n; i++) {
        OK(kvd_rows_begin(r, &err));
        if (i == 1)
            continue; /* row 1 keeps every default value */
        kvd_rows_text(r, "method", "short");
        kvd_rows_text(r, "method",
                      i % 2 ? "gr\xc3\xb6\xc3\x9f"
                              "er"
                            : "none");
        kvd_rows_int(r, "n", i - 5000000000LL);
        kvd_rows_real(r, "share", 0.1 * i);
    }
    assert_int_equal(kvd_rows_count(r), n);
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_rows_write(&f, r, &err));
    OK(kvd_h5_finish(&f, &err));
    kvd_rows_free(r);
}

TEST(test_round_trip)
{
    enum { N = 100 }; /* more rows than the first allocation holds */
    kvd_err err = {""};
    kvd_h5 f;
    write_table(N);
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    kvd_rows *r = kvd_rows_load(&f, &err);
    assert_non_null(r);
    assert_int_equal(kvd_rows_columns(r), 3);
    assert_int_equal(kvd_rows_count(r), N);
    const int method = kvd_rows_find(r, "method"), n = kvd_rows_find(r, "n"),
              share = kvd_rows_find(r, "share");
    assert_true(method >= 0 && n >= 0 && share >= 0);
    assert_int_equal(kvd_rows_find(r, "other"), -1);
    assert_int_equal(kvd_rows_column(r, method)->kind, KVD_COL_TEXT);
    assert_int_equal(kvd_rows_column(r, n)->kind, KVD_COL_INT);
    assert_string_equal(kvd_rows_column(r, share)->long_name, "a share");
    for (int i = 0; i < N; i++) {
        if (i == 1) {
            assert_string_equal(kvd_rows_get_text(r, 1, method), "");
            assert_int_equal(kvd_rows_get_int(r, 1, n), 0);
            assert_true(isnan(kvd_rows_get_real(r, 1, share)));
            continue;
        }
        assert_string_equal(kvd_rows_get_text(r, (size_t)i, method), i % 2 ? "gr\xc3\xb6\xc3\x9f"
                                                                             "er"
                                                                           : "none");
        assert_true(kvd_rows_get_int(r, (size_t)i, n) == i - 5000000000LL);
        assert_true(kvd_rows_get_real(r, (size_t)i, n) == (double)(i - 5000000000LL));
        assert_true(kvd_rows_get_real(r, (size_t)i, share) == 0.1 * i);
    }
    kvd_rows_free(r);
    kvd_h5_close(&f, false);
}

TEST(test_h5py_reads_it)
{
    const char *python = getenv("PYTHON");
    char command[1024];
    if (!python)
        python = "/usr/bin/python3";
    snprintf(command, sizeof command, "%s -c 'import h5py' 2>/dev/null", python);
    if (system(command)) {
        skip();
        return;
    }
    write_table(4);
    snprintf(command, sizeof command,
             "%s -c \"import h5py, math; f = h5py.File('%s', 'r'); r = f['rows']; "
             "m = [x.decode() for x in r['method'][:]]; "
             "assert m == ['none', '', 'none', 'gr\\u00f6\\u00dfer'], m; "
             "assert list(r['n'][:]) == [-5000000000, 0, -4999999998, -4999999997]; "
             "assert math.isnan(r['share'][1]) and r['share'].attrs['units'] in ('1', b'1'); "
             "assert r['n'].dims[0].label == 'row'\"",
             python, temp_file("x.h5"));
    assert_int_equal(system(command), 0);
}

TEST(test_no_rows)
{
    kvd_err err = {""};
    kvd_h5 f;
    char want[128];
    kvd_rows *r = kvd_rows_new(columns, 3, &err);
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    assert_int_equal(kvd_rows_write(&f, r, &err), -1);
    snprintf(want, sizeof want, "'%s': no rows to write", temp_file("x.h5"));
    assert_string_equal(err.msg, want);
    kvd_h5_close(&f, false);
    kvd_rows_free(r);
}

TEST(test_refuses)
{
    kvd_err err = {""};
    kvd_h5 f;
    const double x[3] = {1, 2, 3};
    const kvd_h5_spec a = {"/rows/a", "a column", "1", H5T_IEEE_F64LE, 1, {3}, {"row"}};
    const kvd_h5_spec b = {"/rows/b", "a column", "1", H5T_IEEE_F64LE, 1, {2}, {"row"}};
    const kvd_h5_spec samples = {"/rows/samples",  "raw", "1", H5T_IEEE_F64LE, 2, {3, 1},
                                 {"row", "sample"}};

    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    assert_null(kvd_rows_load(&f, &err));
    assert_non_null(strstr(err.msg, "has no group '/rows'"));
    kvd_h5_close(&f, false);

    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_h5_write(&f, &a, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_write(&f, &b, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    assert_null(kvd_rows_load(&f, &err));
    assert_non_null(strstr(err.msg, "'/rows/b' has 2 rows, other columns 3"));
    kvd_h5_close(&f, false);

    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_h5_write(&f, &a, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_write(&f, &samples, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    kvd_rows *r = kvd_rows_load(&f, &err);
    assert_non_null(r);
    assert_int_equal(kvd_rows_columns(r), 1);
    kvd_rows_free(r);
    kvd_h5_close(&f, false);

    /* A column of shape 1 x 3 has one row and must be refused, because another column has three
     * rows. */
    const kvd_h5_spec turned = {"/rows/turned", "a column",    "1", H5T_IEEE_F64LE, 2,
                                {1, 3},         {"one", "row"}};
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_h5_write(&f, &a, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_write(&f, &turned, H5T_NATIVE_DOUBLE, x, &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    assert_null(kvd_rows_load(&f, &err));
    assert_non_null(strstr(err.msg, "'/rows/turned' has 1 rows, other columns 3"));
    kvd_h5_close(&f, false);
}

/* Tests that a file with this one column is refused with `want` in the message. */
static void column_refused(const kvd_h5_spec *column, hid_t mem_type, const void *data,
                           const char *want)
{
    kvd_err err = {""};
    kvd_h5 f;
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_h5_write(&f, column, mem_type, data, &err));
    OK(kvd_h5_finish(&f, &err));
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    assert_null(kvd_rows_load(&f, &err));
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, temp_file("x.h5")));
    kvd_h5_close(&f, false);
}

TEST(test_refuses_values)
{
    kvd_err err = {""};
    kvd_h5 f;
    const uint64_t large[2] = {1, UINT64_MAX};
    const char texts[2][4] = {"ok", "\x1b[m"};
    const hid_t text = H5Tcopy(H5T_C_S1);
    assert_true(H5Tset_size(text, 4) >= 0);
    const kvd_h5_spec n = {"/rows/n", "how many", "1", H5T_STD_U64LE, 1, {2}, {"row"}},
                      label = {"/rows/label", "a label", "1", text, 1, {2}, {"row"}};
    column_refused(&n, H5T_NATIVE_UINT64, large, "/rows/n holds a number that is too large");
    column_refused(&label, text, texts, "byte 1 of '/rows/label' row 1 is a control character");
    H5Tclose(text);

    kvd_rows *const made = kvd_rows_new(columns, 3, &err);
    assert_non_null(made);
    OK(kvd_rows_begin(made, &err));
    kvd_rows_text(made, "method", "name of a file\n");
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_rows_write(&f, made, &err));
    OK(kvd_h5_finish(&f, &err));
    kvd_rows_free(made);
    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    kvd_rows *const r = kvd_rows_load(&f, &err);
    assert_non_null(r);
    assert_string_equal(kvd_row_text(r, 0, "method"), "name of a file?");
    kvd_rows_free(r);
    kvd_h5_close(&f, false);
}

TEST(test_samples)
{
    kvd_err err = {""};
    kvd_h5 f;
    const kvd_h5_spec spec = {"/rows/raw", "every sample",   "s", H5T_IEEE_F64LE, 2,
                              {0, 3},      {"row", "sample"}},
                      other = {"/rows/raw", "every sample",   "s", H5T_IEEE_F64LE, 2,
                               {0, 2},      {"row", "sample"}};
    kvd_rows *r = kvd_rows_new(columns, 3, &err);
    OK(kvd_rows_add_samples(r, &spec, &err));
    for (int i = 0; i < 40; i++) {
        OK(kvd_rows_begin(r, &err));
        kvd_rows_text(r, "method", i == 1 ? "second" : "others");
        kvd_rows_int(r, "n", i);
        kvd_rows_samples(r, 0, (size_t)i)[1] = i + 0.5;
    }
    OK(kvd_h5_create(&f, temp_file("x.h5"), &schema, test_run(), &err));
    OK(kvd_rows_write(&f, r, &err));
    OK(kvd_h5_finish(&f, &err));
    kvd_rows_free(r);

    OK(kvd_h5_open(&f, temp_file("x.h5"), &schema, &err));
    kvd_rows *from = kvd_rows_load(&f, &err), *const to = kvd_rows_new(columns, 3, &err);
    FAILS_WITH(kvd_rows_load_samples(&f, from, &other, &err),
               "/rows/raw has the shape [40][3], [40][2] is wanted");
    kvd_rows_free(from);
    from = kvd_rows_load(&f, &err);
    OK(kvd_rows_load_samples(&f, from, &spec, &err));
    OK(kvd_rows_add_samples(to, &spec, &err));
    OK(kvd_rows_take(to, from, 1, &err));
    assert_string_equal(kvd_row_text(to, 0, "method"), "second");
    assert_true(kvd_row_real(to, 0, "n") == 1 && isnan(kvd_row_real(to, 0, "share")));
    assert_true(isnan(kvd_rows_samples(to, 0, 0)[0]) && kvd_rows_samples(to, 0, 0)[1] == 1.5);
    kvd_rows_free(to);
    kvd_rows_free(from);
    kvd_h5_close(&f, false);
}

static bool negative(const kvd_rows *r, size_t row, const char *column, double x)
{
    (void)r;
    (void)row;
    (void)column;
    return x < 0;
}

TEST(test_check)
{
    static const char *const both[] = {"method", "n", NULL}, *const more[] = {"n", "width", NULL};
    static const char *const none[] = {NULL};
    static const kvd_column n_is_real[] = {{"n", KVD_COL_REAL, "1", "how many"}},
                            n_is_text[] = {{"n", KVD_COL_TEXT, "1", "how many"}};
    kvd_err err = {""};
    kvd_rows *const r = kvd_rows_new(columns, 3, &err);
    OK(kvd_rows_begin(r, &err));
    OK(kvd_rows_check(r, "x.h5", columns, 3, both, negative, &err));
    FAILS(kvd_rows_check(r, "x.h5", columns, 3, more, negative, &err),
          "'x.h5': no column '/rows/width' of the type wanted");
    assert_int_equal(kvd_rows_check(r, "x.h5", n_is_real, 1, both + 1, negative, &err), -1);
    OK(kvd_rows_check(r, "x.h5", n_is_real, 1, none, negative, &err));
    FAILS(kvd_rows_check(r, "x.h5", n_is_text, 1, none, negative, &err),
          "'x.h5': /rows/n has numbers, should have text");
    kvd_rows_int(r, "n", -2);
    FAILS(kvd_rows_check(r, "x.h5", columns, 3, both, negative, &err),
          "'x.h5': '/rows/n' is -2 in row 0");
    kvd_rows_free(r);
}

TEST_MAIN(NULL, NULL)
