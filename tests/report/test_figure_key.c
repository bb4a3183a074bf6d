/* Tests that a figure's legend, drawn by plots/common.gp, is within the page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;

/* Fills a table of n series with two points each, in the columns that plots/accuracy.gp reads.
 * `tail`: text at the end of each series name. */
static void fill(kvd_table *t, int n, const char *tail)
{
    char name[120];
    kvd_table_init(t, "key", "Key");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    for (int k = 0; k < 10; k++)
        kvd_table_add_column(t, KVD_CELL_REAL, 6, "x", "x");
    for (int i = 0; i < n; i++)
        for (int p = 1; p <= 2; p++) {
            snprintf(name, sizeof name, "[%d]%s", i, tail);
            kvd_table_text(t, name);
            kvd_table_real(t, 0.3 * p);
            for (int k = 0; k < 9; k++)
                kvd_table_real(t, 1 + 0.01 * k + 0.001 * i);
        }
    OK(kvd_table_check(t, &err));
}

static void assert_inside(const char *svg, int number, const char *tail, int width, int height)
{
    char text[160];
    double x = -1, y = -1;
    const int length =
        snprintf(text, sizeof text, "<text>[%d]%s<", number, tail) - (int)strlen("<text><");
    const char *const at = strstr(svg, text);
    if (!at)
        fail_msg("name %d is not in the figure", number);
    assert_null(strstr(at + strlen(text), text));
    const char *place = at;
    while (place > svg && strncmp(place, "translate(", 10) != 0)
        place--;
    assert_int_equal(sscanf(place, "translate(%lf,%lf)", &x, &y), 2);
    if (!(x - 6 * length > 0 && x < width && y > 0 && y < height))
        fail_msg("name %d ends at %g, %g of %d x %d", number, x, y, width, height);
}

static void draw(int n, const char *tail)
{
    enum { WIDTH = 980, BASE = 420 };
    char command[600], path[128];
    kvd_table t;
    fill(&t, n, tail);
    const int height = kvd_height_with_key(BASE, WIDTH, 3, &t, 0, SIZE_MAX);
    char folder[100];
    snprintf(folder, sizeof folder, "%s/%d", temp_folder(), n);
    snprintf(path, sizeof path, "%s/tables", folder);
    OK(kvd_make_folder(path, &err));
    OK(kvd_table_write(&t, &(kvd_output){.partial = folder}, &err));
    snprintf(path, sizeof path, "%s/key.svg", temp_folder());
    snprintf(
        command, sizeof command,
        "gnuplot -e \"term='svg'; out='%s'; width=%d; height=%d; csv='%s/tables/key.csv'\" plots/common.gp "
        "plots/accuracy.gp 2>/dev/null",
        path, WIDTH, height, folder);
    assert_int_equal(system(command), 0);
    size_t size;
    const char *const svg = unit_read(path, &size);
    for (int i = 0; i < n; i++)
        assert_inside(svg, i, tail, WIDTH, height);
    kvd_table_release(&t);
}

TEST(every_name_has_a_place)
{
    if (system("gnuplot --version >/dev/null 2>&1"))
        skip();
    draw(1, "");
    draw(12, " by Eq. 6");
    draw(13, " at p = 0.50 on wikipedia with tables of another text and 8192 tokens of it");
    draw(20, " f32 (8176 predictions) calibrated on a text with a long name");
    draw(41, " by error table");
}

TEST(heights)
{
    kvd_table t;
    fill(&t, 9, "");
    assert_int_equal(kvd_height_with_key(420, 980, 3, &t, 0, SIZE_MAX), 420);
    assert_int_equal(kvd_height_with_key(420, 980, 2, &t, 0, SIZE_MAX), 420 + 2 * 20);
    assert_int_equal(kvd_height_with_key(420, 60, 3, &t, 0, SIZE_MAX),
                     /* The narrow figure's legend has one column of 9 rows; 3 rows fit into a
                      * height of 420. */
                     420 + 6 * 20);
    kvd_table_release(&t);
}

TEST_MAIN(NULL, NULL)
