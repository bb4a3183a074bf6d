#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/csv.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;

typedef struct {
    char text[4096];
    size_t stop_at;
} joined;

static int join(void *ctx, size_t line, char *const *field, const size_t *len, size_t n, kvd_err *e)
{
    joined *j = ctx;
    if (line == j->stop_at)
        return kvd_fail(e, "field 0 is '%s'", field[0]);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(field[i][len[i]], 0);
        strncat(j->text, field[i], sizeof j->text - strlen(j->text) - 1);
        strncat(j->text, i + 1 < n ? "|" : ";", sizeof j->text - strlen(j->text) - 1);
    }
    return 0;
}

static const char *parsed(const char *text, joined *j)
{
    *j = (joined){.stop_at = 0};
    OK(kvd_csv_parse("t.csv", text, strlen(text), join, j, &err));
    return j->text;
}

TEST(test_rows)
{
    joined j;
    assert_string_equal(parsed("a,b,c\n1,2,3\n", &j), "a|b|c;1|2|3;");
    assert_string_equal(parsed("a,b\r\n1,2", &j), "a|b;1|2;");
    assert_string_equal(parsed("\"a,\"\"b\"\"\",\"x\ny\"\n", &j), "a,\"b\"|x\ny;");
    assert_string_equal(parsed("a,,\n", &j), "a||;");
    assert_string_equal(parsed("1, 2 ,3\n", &j), "1|2|3;");
    assert_string_equal(parsed("\xef\xbb\xbf"
                               "a\n\n\nb\n",
                               &j),
                        "a;b;");
    assert_string_equal(parsed("", &j), "");
}

TEST(test_errors)
{
    joined j = {.stop_at = 0};
    static const char *const bad[] = {"a\nb\"c,d\n", "a\n\"b\"c,d\n", "a\n\"b"};
    for (size_t i = 0; i < 3; i++) {
        FAILS(kvd_csv_parse("t.csv", bad[i], strlen(bad[i]), join, &j, &err),
              "'t.csv' row 2: a double quote is out of place or has no end");
    }
    j.stop_at = 2;
    FAILS(kvd_csv_parse("t.csv", "a\nb\nc\n", 6, join, &j, &err), "'t.csv' row 2: field 0 is 'b'");
    FAILS(kvd_csv_read("/nowhere/x.csv", join, &j, &err),
          "cannot open '/nowhere/x.csv': No such file or directory");
    FAILS(kvd_csv_read("/", join, &j, &err), "'/' is a folder, not a file");
}

static int count_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n,
                     kvd_err *e)
{
    (void)line;
    (void)e;
    size_t *sum = ctx;
    sum[0]++;
    sum[1] += n;
    for (size_t i = 0; i < n; i++)
        sum[2] += len[i] + (field[i][0] == '\0');
    return 0;
}

TEST(test_zero_bytes_and_large_rows)
{
    size_t sum[3] = {0};
    OK(kvd_csv_parse("t.csv", "a\0b,c\n", 6, count_row, sum, &err));
    assert_int_equal(sum[2], 4);
    const size_t n = 300000;
    char *text = unit_alloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = '7';
        text[2 * i + 1] = i + 1 < n ? ',' : '\n';
    }
    memset(sum, 0, sizeof sum);
    OK(kvd_csv_parse("t.csv", text, 2 * n, count_row, sum, &err));
    assert_int_equal(sum[0], 1);
    assert_int_equal(sum[1], n);
    const size_t big = ((size_t)64 << 20) + 100000;
    text = unit_alloc(big);
    memset(text, 'x', big);
    FAILS(kvd_csv_parse("t.csv", text, big, count_row, sum, &err),
          "'t.csv' row 1 is longer than 67108864 bytes");
}

TEST(test_round_trip)
{
    static const char *const fields[] = {"plain",      "a,b", "say \"x\"", " blank ",
                                         "two\nlines", "",    "1.5",       "\ttab"};
    const char *const path = temp_file("x.csv");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < 8; i++)
        OK(kvd_csv_put(f, fields[i], i == 3 || i == 7, &err));
    assert_int_equal(fclose(f), 0);
    joined j = {.stop_at = 0};
    OK(kvd_csv_read(path, join, &j, &err));
    assert_string_equal(j.text, "plain|a,b|say \"x\"| blank ;two\nlines||1.5|\ttab;");
    f = fopen("/dev/full", "w");
    if (f) {
        setvbuf(f, NULL, _IONBF, 0);
        FAILS(kvd_csv_put(f, "x", 1, &err), "cannot write a csv field: No space left on device");
        fclose(f);
    }
}

/* The CSV writer puts an apostrophe before a field that a spreadsheet would run as a formula. */
TEST(test_formulas)
{
    static const char *const fields[][2] = {
        {"=1+1", "'=1+1"},
        {"=", "="},
        {"@SUM(A1)", "'@SUM(A1)"},
        {"+cmd", "'+cmd"},
        {"-2+3", "'-2+3"},
        {"-0.25", "-0.25"},
        {"+1e-3", "+1e-3"},
        {"-inf", "-inf"},
        {"-", "-"},
        {"\t=1", "'\t=1"},
        {"\r=1", "'\r=1"},
        {"a=1", "a=1"},
        {"", ""},
        {"-1 to 2", "'-1 to 2"},
        {"=\"a,b\"", "'=\"a,b\""},
        {"'=1", "'=1"},
    };
    enum { N = sizeof fields / sizeof *fields };
    char *text = NULL, want[400] = "";
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    for (size_t i = 0; i < N; i++) {
        OK(kvd_csv_put_text(f, fields[i][0], i + 1 == N, &err));
        strcat(want, fields[i][1]);
        strcat(want, i + 1 == N ? ";" : "|");
    }
    assert_int_equal(fclose(f), 0);
    joined j = {.stop_at = 0};
    OK(kvd_csv_parse("t.csv", text, len, join, &j, &err));
    assert_string_equal(j.text, want);
    free(text);
}

static int read_table(const char *table, const char *text, size_t len, joined *j)
{
    const char *const path = temp_file("table.csv");
    unit_write(path, text, len);
    *j = (joined){.stop_at = 0};
    return kvd_csv_read_table(path, table, join, j, &err);
}

TEST(test_tables)
{
    static const char text[] = "a,x,y\na,1,2\nb,x\nb,11\nc,3\nend,5\n";
    const size_t whole = sizeof text - 1;
    joined j;
    assert_int_equal(read_table("b", text, whole, &j), 0);
    assert_string_equal(j.text, "x;11;");
    for (size_t len = 0; len < whole - 1; len++)
        assert_int_equal(read_table("b", text, len, &j), -1);
    assert_int_equal(read_table("b", text, (size_t)(strstr(text, "c,3") - text), &j), -1);
    assert_non_null(strstr(err.msg, "is cut off: it has 4 rows and no last row 'end,4'"));
    static const char missing[] = "a,x\nb,x\nb,1\nend,4\n", more[] = "b,x\nend,1\nb,2\n",
                      none[] = "a,x\nend,1\n";
    assert_int_equal(read_table("b", missing, strlen(missing), &j), -1);
    assert_non_null(strstr(err.msg, "has 3 rows, its last row 'end,4' wants 4"));
    assert_int_equal(read_table("b", more, strlen(more), &j), -1);
    assert_non_null(strstr(err.msg, "row 3: a row after the last row, 'end,1'"));
    assert_int_equal(read_table("b", none, strlen(none), &j), -1);
    assert_non_null(strstr(err.msg, "has no table 'b'"));
}

TEST(test_one_table)
{
    static const char text[] = "x,y\n11,2\n3,5\nend,3\n", zero[] = "x\n1\0,2\nend,2\n";
    const size_t whole = sizeof text - 1;
    joined j;
    assert_int_equal(read_table(NULL, text, whole, &j), 0);
    assert_string_equal(j.text, "x|y;11|2;3|5;");
    for (size_t len = 0; len < whole - 1; len++)
        assert_int_equal(read_table(NULL, text, len, &j), -1);
    assert_int_equal(read_table(NULL, "end,0\n", 6, &j), -1);
    assert_non_null(strstr(err.msg, "has no rows"));
    assert_int_equal(read_table(NULL, zero, sizeof zero - 1, &j), -1);
    assert_non_null(strstr(err.msg, "row 2: field 1 has a zero byte"));
}

TEST_MAIN(NULL, NULL)
