/* Section of the report: how attention is distributed over tokens. */
#include <stdio.h>
#include <string.h>

#include "report/studies/studies.h"

/* index of 0.95 in the array kvd_critical_level, whose values are fractions of the total
 * attention */
enum { P95 = 1 };

static void layers_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *t =
        kvd_section_table(s, "tokens-layers", "Scores, spread and critical tokens by layer");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "text");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "layer");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "score_min", "smallest score");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "score_low", "0.1 %");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "score_median", "median");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "score_high", "99.9 %");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "score_max", "largest score");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "received_decades", "mean mass received, decades");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "value_decades", "norms of V, decades");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "critical_mean", "tokens with 95 % of the mass");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "critical_sd", "standard deviation over requests");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "critical_share_percent", "% of the request");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "group", "group by denominators");
    kvd_table_note(
        t, "Decades from the 0.1 %% to the 99.9 %% quantile over tokens and heads. Groups: layers "
           "whose important and whose unimportant tokens are those of the group's first layer, but "
           "for the part that kvdim-tokens was told (5 %% unless said otherwise).");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_tokens *x = &r->item[i].tokens;
        if (r->item[i].kind != KVD_RESULT_TOKENS)
            continue;
        const size_t n = (size_t)x->n_layers;
        for (size_t l = 0; l < n; l++) {
            const double *curve = x->data[KVD_T_SCORE_CURVE] + l * KVD_N_CURVE;
            kvd_table_text(t, r->item[i].name);
            kvd_table_int(t, x->first_layer + (int64_t)l);
            kvd_table_reals(t, x->data[KVD_T_SCORE_MIN][l], curve[1], curve[KVD_N_CURVE / 2],
                            curve[KVD_N_CURVE - 2], x->data[KVD_T_SCORE_MAX][l],
                            x->data[KVD_T_RECEIVED_DECADES][l], x->data[KVD_T_VALUE_DECADES][l],
                            x->data[KVD_T_LAYER_MEAN][P95 * n + l],
                            x->data[KVD_T_LAYER_SD][P95 * n + l],
                            100 * x->data[KVD_T_LAYER_SHARE][P95 * n + l]);
            kvd_table_int(t, (int64_t)x->data[KVD_T_GROUP][KVD_RANK_DENOMINATOR * n + l]);
        }
    }
}

static void overlap_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = kvd_section_table(
        s, "tokens-overlap", "Tokens that two layers share, by their distance (ZDC Fig. 7 and 8)");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "text");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "ranked_by", "ranked by");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "distance", "distance");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "unimportant_percent", "unimportant, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "unimportant_min", "least");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "unimportant_max", "most");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "important_percent", "important, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "important_min", "least");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "important_max", "most");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "by_chance_percent", "by chance, %");
    kvd_table_note(
        t,
        "Mean, least and most over pairs of layers, each a mean over requests. By chance: two "
        "sets drawn at random. The paper ranks by the mean score: here over the keys that a token "
        "sees as a query (score), and over the queries that see it as a key. Denominators of "
        "softmax grow with a token's position (D-11); per key that growth is taken out. Mass is "
        "what a token receives.");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_tokens *x = &r->item[i].tokens;
        if (r->item[i].kind != KVD_RESULT_TOKENS)
            continue;
        for (int by = 0; by < KVD_N_RANKINGS; by++)
            for (int d = 1; d < x->n_layers; d++) {
                const kvd_token_overlap low = kvd_tokens_at_distance(x, KVD_T_UNIMPORTANT,
                                                                     (kvd_ranking)by, d),
                                        high = kvd_tokens_at_distance(x, KVD_T_IMPORTANT,
                                                                      (kvd_ranking)by, d);
                kvd_table_text(t, r->item[i].name);
                kvd_table_text(t, kvd_ranking_name[by]);
                kvd_table_int(t, d);
                kvd_table_reals(t, 100 * low.mean, 100 * low.least, 100 * low.most, 100 * high.mean,
                                100 * high.least, 100 * high.most, 100 * x->share);
            }
    }
}

static const kvd_table *curves(const kvd_tokens *x, kvd_section *s)
{
    static const struct {
        const char *name;
        kvd_t curve;
    } what[] = {{"score", KVD_T_SCORE_CURVE},
                {"received", KVD_T_RECEIVED_CURVE},
                {"value", KVD_T_VALUE_CURVE}};
    kvd_table *t = kvd_section_data(s, "tokens-curves", "Distributions by layer");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "quantity", "quantity");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "layer");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "value", "value");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "quantile", "quantile");
    for (size_t k = 0; k < sizeof what / sizeof *what; k++)
        for (int l = 0; l < x->n_layers; l++)
            for (int q = 0; q < KVD_N_CURVE; q++) {
                kvd_table_text(t, what[k].name);
                kvd_table_int(t, x->first_layer + l);
                kvd_table_real(t, x->data[what[k].curve][l * KVD_N_CURVE + q]);
                kvd_table_real(t, kvd_curve_level[q]);
            }
    return t;
}

static void pairs_data(const kvd_tokens *x, kvd_section *s)
{
    kvd_table *t = kvd_section_data(s, "tokens-pairs", "Tokens that pairs of layers share");
    const size_t n = (size_t)x->n_layers;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "ranked_by", "ranked by");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "distance", "distance");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "first layer of the pair");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "unimportant_percent", "unimportant, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "important_percent", "important, %");
    for (size_t by = 0; by < KVD_N_RANKINGS; by++)
        for (size_t d = 1; d < n; d++)
            for (size_t l = 0; l + d < n; l++) {
                const size_t at = (by * n + l) * n + l + d;
                kvd_table_text(t, kvd_ranking_name[by]);
                kvd_table_int(t, (int64_t)d);
                kvd_table_int(t, x->first_layer + (int64_t)l);
                kvd_table_real(t, 100 * x->data[KVD_T_UNIMPORTANT][at]);
                kvd_table_real(t, 100 * x->data[KVD_T_IMPORTANT][at]);
            }
}

static void critical_data(const kvd_tokens *x, kvd_section *s)
{
    kvd_table *t = kvd_section_data(s, "tokens-critical", "Critical tokens per layer and KV head");
    const int kv = x->model.n_kv_heads;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "of", "of");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "level_percent", "level, %");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "layer");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "kv_head", "KV head");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "mean", "mean");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "sd", "standard deviation");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "min", "fewest");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "max", "most");
    for (int level = 0; level < KVD_N_CRITICAL_LEVELS; level++)
        for (int l = 0; l < x->n_layers; l++)
            /* Adds a row for the whole layer (h = -1), then a row for each KV head. */
            for (int h = -1; h < kv; h++) {
                /* index of the first of four datasets, which hold means, standard deviations,
                 * minima and maxima */
                const int of = h < 0 ? KVD_T_LAYER_MEAN : KVD_T_KV_MEAN;
                const int at = h < 0 ? level * x->n_layers + l : (level * x->n_layers + l) * kv + h;
                kvd_table_text(t, h < 0 ? "layer" : "kv_head");
                kvd_table_real(t, 100 * kvd_critical_level[level]);
                kvd_table_int(t, x->first_layer + l);
                kvd_table_int(t, h);
                for (int k = 0; k < 4; k++)
                    kvd_table_real(t, x->data[of + k][at]);
            }
}

static void figures(const kvd_result *best, const kvd_table *curve, kvd_section *s)
{
    static const kvd_panel spread[] = {{.title = "mean probability received",
                                        .where = "quantity",
                                        .is = "received",
                                        .x = "value",
                                        .log_x = true,
                                        .y = "quantile"},
                                       {.title = "norm of the value vector",
                                        .where = "quantity",
                                        .is = "value",
                                        .x = "value",
                                        .log_x = true,
                                        .y = "quantile"}};
    const kvd_tokens *x = &best->tokens;
    const int first = x->first_layer, last = first + x->n_layers - 1,
              middle = first + (x->n_layers - 1) / 2;
    char caption[640];
    snprintf(
        caption, sizeof caption,
        "Scores before softmax of every layer, all heads together, on %.160s: part of the scores "
        "below a value (ZDC Fig. 6). The vertical axis is stretched at both ends.",
        best->name);
    kvd_section_figure(
        s, "zdc-fig06-scores", "token_studies.gp", 640, 400, caption,
        "show='scores'; csv='tables/tokens-curves.csv'; first_layer=%d; last_layer=%d", first,
        last);
    snprintf(
        caption, sizeof caption,
        "Part of the %.3g %% least (left) and most (right) important tokens that two layers "
        "share, against their distance, on %.160s: a point per pair of layers, lines through the "
        "means (ZDC Fig. 7 and 8, which show the same pairs as distributions per distance). Grey: "
        "two sets drawn at random.",
        100 * x->share, best->name);
    if (x->n_layers > 1)
        kvd_section_figure(s, "zdc-fig07-08-overlap", "token_studies.gp", 900, 420, caption,
                           "show='overlap'; csv='tables/tokens-pairs.csv'; chance=%.6g; last=%d",
                           100 * x->share, x->n_layers - 1);
    snprintf(
        caption, sizeof caption,
        "Mean probability that a token receives from later ones, per head (solid), and norms of "
        "its value vectors (dashed), on %.160s: part of the tokens below a value, of three layers "
        "(LeanKV Fig. 1).",
        best->name);
    kvd_section_figure(s, "leankv-fig01-spread", "token_studies.gp", 640, 400, caption,
                       "show='spread'; csv='tables/tokens-curves.csv'; layers='%d %d %d'", first,
                       middle, last);
    kvd_section_panels(s, curve, spread, sizeof spread / sizeof *spread);
    snprintf(
        caption, sizeof caption,
        "Tokens that hold 90, 95 and 99 %% of a layer's attention mass (left; LeanKV Fig. 2) and "
        "95 %% of a KV head's, in three layers (right; LeanKV Fig. 3), on %.160s: mean over "
        "requests of at most %zu tokens, bars: standard deviation.",
        best->name, x->seq_len);
    kvd_section_figure(
        s, "leankv-fig02-03-critical", "token_studies.gp", 900, 420, caption,
        "show='critical'; csv='tables/tokens-critical.csv'; layers='%d %d %d'; last_head=%d; first_layer=%d; "
        "last_layer=%d",
        first, middle, last, x->model.n_kv_heads - 1, first, last);
}

/* Returns true if figures should show x rather than y. Trained weights come before random weights,
 * then more tokens before fewer. */
static bool preferred(const kvd_tokens *x, const kvd_tokens *y)
{
    const bool x_random = kvd_model_info_untrained(&x->model),
               y_random = kvd_model_info_untrained(&y->model);
    return x_random != y_random ? y_random : x->n_tokens > y->n_tokens;
}

void kvd_study_tokens(const kvd_results *r, kvd_report *report)
{
    const kvd_result *best = NULL;
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_TOKENS &&
            (!best || preferred(&r->item[i].tokens, &best->tokens)))
            best = &r->item[i];
    if (!best)
        return;
    kvd_section *s = kvd_report_section(report, "tokens", "Which tokens matter");
    kvd_text_raw(
        &s->words,
        "<p>What attention does with its tokens: how far scores spread by layer, whether layers "
        "agree on which tokens are important (by mean scores, as ZDC's Observation 4 has it, by "
        "softmax denominators, as its section 5 has it, and by the mass that tokens receive), how "
        "much more attention varies over tokens than the size of their values, and how many tokens "
        "hold most of the mass. Mass is summed over all queries of a request.</p>\n");
    layers_table(r, s);
    overlap_table(r, s);
    const kvd_table *const drawn = curves(&best->tokens, s);
    pairs_data(&best->tokens, s);
    critical_data(&best->tokens, s);
    figures(best, drawn, s);
}
