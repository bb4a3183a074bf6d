#include "evaluate/tasks/benchmark.h"

#include <stdlib.h>
#include <string.h>

kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err)
{
    kvd_benchmark_item *const grown = realloc(b->item, (b->n + 1) * sizeof *grown);
    if (!grown) {
        kvd_no_memory(err, "items of a benchmark", (b->n + 1) * sizeof *grown);
        return NULL;
    }
    b->item = grown;
    grown[b->n] = (kvd_benchmark_item){0};
    return &grown[b->n++];
}

kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err)
{
    kvd_benchmark_item *const x = &b->item[b->n - 1];
    kvd_benchmark_turn *const grown = realloc(x->turn, (x->n_turns + 1) * sizeof *grown);
    if (!grown) {
        kvd_no_memory(err, "questions of an item", (x->n_turns + 1) * sizeof *grown);
        return NULL;
    }
    x->turn = grown;
    grown[x->n_turns] = (kvd_benchmark_turn){0};
    return &grown[x->n_turns++];
}

int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err)
{
    char **const grown = realloc(*list, (*n + 1) * sizeof *grown);
    if (grown)
        *list = grown;
    if (!grown || !(grown[*n] = strdup(text)))
        return kvd_no_memory(err, "texts of an item", strlen(text) + sizeof *grown);
    ++*n;
    return 0;
}

static void release_list(char **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i]);
    free(list);
}

void kvd_benchmark_release(kvd_benchmark *b)
{
    for (size_t i = 0; i < b->n; i++) {
        kvd_benchmark_item *const x = &b->item[i];
        for (size_t t = 0; t < x->n_turns; t++) {
            free(x->turn[t].question);
            free(x->turn[t].answer_prefix);
            release_list(x->turn[t].reference, x->turn[t].n_references);
        }
        release_list(x->choice, x->n_choices);
        free(x->turn);
        free(x->id);
        free(x->task);
        free(x->context);
        free(x->stop);
    }
    free(b->item);
    *b = (kvd_benchmark){0};
}
