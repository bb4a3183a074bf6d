/* Compares the table of model families in docs/checkpoints.md with what the code supports. A cell
 * is "yes", "no: WHY" or "yes, but WHY", where WHY is part of the error message. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/weights.h"
#include "evaluate/generate/generate_path.h"
#include "expected.h"
#include "gpu_case.h"
#include "model/checkpoint/cuda/weights.h"
#include "model/pass/backward.h"
#include "model/pass/forward.h"

enum { CPU_PASS, GPU_PASS, CPU_GRADIENTS, GPU_GRADIENTS, CPU_ENGINE, GPU_ENGINE, COLUMNS };
static const char *const column[COLUMNS] = {"forward, CPU",   "forward, GPU", "gradients, CPU",
                                            "gradients, GPU", "engine, CPU",  "engine, GPU"};
enum { ROWS = 80, CELL = 160 };
static struct {
    char family[CELL], cell[COLUMNS][CELL];
    bool used, refused[COLUMNS], accepted[COLUMNS];
} row[ROWS];
static size_t n_rows;

/* Copies the text before the next '|' of a table row to `cell`. Returns the rest of the row. */
static const char *next_cell(const char *line, char cell[CELL])
{
    const char *const end = strchr(line, '|');
    if (!end) {
        cell[0] = '\0';
        return line;
    }
    const char *from = line, *to = end;
    while (from < to && (*from == ' ' || *from == '`'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '`'))
        to--;
    (void)snprintf(cell, CELL, "%.*s", (int)(to - from), from);
    return end + 1;
}

static void read_table(void)
{
    char line[1024];
    bool inside = false;
    FILE *const f = fopen("docs/checkpoints.md", "r");
    if (!f) {
        test_result(0, "docs/checkpoints.md", "cannot be opened");
        return;
    }
    while (fgets(line, sizeof line, f)) {
        inside = line[0] == '#' ? strstr(line, "What computes which family") != NULL : inside;
        if (!inside || strncmp(line, "| `", 3) != 0 || n_rows == ROWS)
            continue;
        const char *at = next_cell(line + 1, row[n_rows].family);
        for (int i = 0; i < COLUMNS; i++)
            at = next_cell(at, row[n_rows].cell[i]);
        n_rows++;
    }
    (void)fclose(f);
}

/* Checks whether a part of kvdim, such as the CPU's forward pass, supports the model of checkpoint
 * c. `which`: a column of the table in docs/checkpoints.md. Returns 0, or -1 with the reason in
 * *err. */
static int ask(int which, const kvd_checkpoint *c, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_gpu_share share;
    kvd_cpu_weights weights;
    kvd_forward *forward = NULL;
    kvd_backward *backward = NULL;
    int status = 0;
    switch (which) {
    case CPU_PASS:
        status = (forward = kvd_forward_new(c, 8, 8, err)) ? 0 : -1;
        kvd_forward_free(forward);
        return status;
    case CPU_GRADIENTS:
        status = (backward = kvd_backward_new(c, 8, 8, err)) ? 0 : -1;
        kvd_backward_free(backward);
        return status;
    case CPU_ENGINE:
        status = kvd_cpu_weights_find(&weights, c, NULL, err);
        kvd_cpu_weights_release(&weights);
        return status;
    default:
        return kvd_gpu_share_of(config,
                                which == GPU_PASS        ? KVD_GPU_PASS
                                : which == GPU_GRADIENTS ? KVD_GPU_GRADIENTS
                                                         : KVD_GPU_SERVING,
                                0, 1, &share, err);
    }
}

/* Returns true if kvdim-tasks would use the GPU engine. */
static bool generates_in_engine(const kvd_config *c)
{
    const kvd_generator_spec s = {.gpu = true, .compute = KVD_BF16, .max_tokens = 4, .max_len = 4};
    const kvd_plan plan = {.type = KVD_BF16};
    char why[KVD_GENERATOR_WHY] = "";
    const bool runs = kvd_generate_engine_runs(c, &s, &plan, why);
    return runs || why[0] == '\0';
}

static const char *why_of(const char *cell)
{
    return !strncmp(cell, "no: ", 4) ? cell + 4 : !strncmp(cell, "yes, but ", 9) ? cell + 9 : NULL;
}

static void test_fixture(const char *name)
{
    char path[256], text[1024] = "as the table says";
    kvd_err err = {""};
    bool ok = true;
    (void)snprintf(path, sizeof path, "tests/data/families/%s", name);
    kvd_checkpoint *const c = kvd_checkpoint_open(path, &err);
    size_t r = 0;
    while (c && r < n_rows && strcmp(row[r].family, kvd_checkpoint_config(c)->family) != 0)
        r++;
    if (!c || r == n_rows) {
        test_result(0, name, "%s", c ? "has no row" : err.msg);
        kvd_checkpoint_close(c);
        return;
    }
    row[r].used = true;
    for (int i = 0; i < COLUMNS; i++) {
        const char *const cell = row[r].cell[i], *const why = why_of(cell);
        const bool refused = ask(i, c, &err) != 0;
        row[r].refused[i] = row[r].refused[i] || refused;
        row[r].accepted[i] = row[r].accepted[i] || !refused;
        if (refused ? !why || !strstr(err.msg, why) : strncmp(cell, "yes", 3) != 0) {
            (void)snprintf(text, sizeof text, "%s is '%s' in the table, the code says: %s",
                           column[i], cell, refused ? err.msg : "yes");
            ok = false;
        }
    }
    if (ok && ask(GPU_ENGINE, c, &err) && generates_in_engine(kvd_checkpoint_config(c))) {
        (void)snprintf(text, sizeof text, "kvdim-tasks takes the engine, which says: %s", err.msg);
        ok = false;
    }
    test_result(ok, name, "%s", text);
    kvd_checkpoint_close(c);
}

static void test_rows(void)
{
    const kvd_family *f = NULL;
    size_t n_families = 0;
    for (; (f = kvd_family_at(n_families)); n_families++) {
        size_t n = 0;
        for (size_t r = 0; r < n_rows; r++)
            n += !strcmp(row[r].family, f->name);
        if (n != 1)
            test_result(0, f->name, "%s", n ? "has several rows" : "has no row");
    }
    for (size_t r = 0; r < n_rows; r++)
        for (int i = 0; i < COLUMNS && row[r].used; i++) {
            const char *const cell = row[r].cell[i];
            if ((why_of(cell) && !row[r].refused[i]) ||
                (!strncmp(cell, "yes", 3) && !row[r].accepted[i]))
                test_result(0, row[r].family, "%s", cell);
        }
    test_result(n_rows == n_families, "rows", "%s",
                n_rows ? "one for each family" : "no table found");
}

int main(void)
{
#define NAME(name) name
    static const char *const fixture[] = {FAMILIES(NAME), ROUTED(NAME), LATENT(NAME)};
    test_subject = "table of families";
    read_table();
    for (size_t i = 0; i < sizeof fixture / sizeof *fixture; i++)
        test_fixture(fixture[i]);
    test_rows();
    return failures ? 1 : 0;
}
