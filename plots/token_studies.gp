# Figures of kvdim-tokens. show: 'scores', 'overlap', 'spread' or 'critical'; the other variables are named with each.

# Distribution of scores before softmax, a curve per layer (ZDC Fig. 6).
# csv: quantity, layer, value, quantile; first_layer, last_layer.
# The vertical axis is the logarithm of the odds, so that both tails are seen.
if (show eq 'scores') {
  odds(p) = log(p/(1 - p))
  set palette defined (0 '#2a6fb0', 0.5 '#8a8a8a', 1 '#e0a500')
  set cbrange [first_layer:(last_layer > first_layer ? last_layer : first_layer + 1)]
  set cblabel 'layer' offset -1,0
  set cbtics (first_layer, last_layer)
  if (last_layer == first_layer) { unset colorbox }
  unset key
  set xlabel 'score'
  set ylabel 'part of the scores below, %' offset 0.5,0
  set yrange [odds(0.0001):odds(0.9999)]
  set ytics ('0.01' odds(0.0001), '0.1' odds(0.001), '1' odds(0.01), '10' odds(0.1), '50' 0, '90' odds(0.9), '99' odds(0.99), '99.9' odds(0.999), '99.99' odds(0.9999))
  plot for [l=first_layer:last_layer] csv skip 1 using (strcol(1) eq 'score' && $2 == l ? $3 : NaN):(odds($4)):(l) with lines lw 1.6 lc palette
}

# Part of the least and most important tokens that two layers share, against their distance (ZDC Fig. 7 and 8).
# csv: ranked_by, distance, layer, unimportant_percent, important_percent; chance: percent; last: largest distance.
if (show eq 'overlap') {
  stats csv skip 1 using (note(strcol(1))) nooutput
  n = words(names)
  set xlabel 'distance of the layers'
  set xrange [0.5:last + 0.5]
  set yrange [0:100]
  if (last <= 16) { set xtics 1 }
  set multiplot
  do for [c=0:1] {
    set lmargin at screen (c == 0 ? 0.075 : 0.555)
    set rmargin at screen (c == 0 ? 0.505 : 0.985)
    set tmargin at screen 0.91
    set bmargin at screen 0.26
    set title (c == 0 ? 'unimportant tokens' : 'important tokens') offset 0,-0.4
    if (c == 0) { set ylabel 'shared, %' offset 1,0; set key at screen 0.5, screen 0.02 center bottom vertical maxrows 2 width 4 } else { unset ylabel; unset key }
    set arrow 1 from graph 0, first chance to graph 1, first chance nohead lc rgb '#9a9a9a' lw 1.5 dt 2
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) ? $2 + 0.1*(i - (n + 1)/2.0) : NaN):(column(4 + c)) with points lc rgb hue(i) ps 0.55 notitle, \
         for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) ? $2 : NaN):(column(4 + c)) smooth unique with lines lc rgb hue(i) lw 1.8 title word(names, i)
  }
  unset multiplot
}

# Mean attention per token against norms of values (LeanKV Fig. 1). csv: quantity, layer, value, quantile; layers: '0 3 7'.
if (show eq 'spread') {
  set logscale x
  set xlabel 'mean probability received (solid), norm of the value vector (dashed)'
  set ylabel 'part of the tokens below, %'
  set yrange [0:100]
  set format x '%g'
  n = words(layers)
  plot for [i=1:n] csv skip 1 using (strcol(1) eq 'received' && $2 == int(word(layers, i)) ? $3 : NaN):(100*$4) with lines lt i lw 1.8 title 'layer '.word(layers, i), \
       for [i=1:n] csv skip 1 using (strcol(1) eq 'value' && $2 == int(word(layers, i)) ? $3 : NaN):(100*$4) with lines lt i dt 2 lw 1.8 notitle
}

# Tokens that hold most of the mass, per layer and per KV head (LeanKV Fig. 2 and 3).
# csv: of, level_percent, layer, kv_head, mean, sd, min, max; layers: '0 3 7'; last_head, first_layer, last_layer.
if (show eq 'critical') {
  n = words(layers)
  set yrange [0:*]
  set multiplot
  set tmargin at screen 0.84
  set bmargin at screen 0.15
  set key outside top center horizontal maxrows 1
  set lmargin at screen 0.075
  set rmargin at screen 0.49
  set xlabel 'layer'
  set ylabel 'tokens that hold so much' offset 1,0
  set xrange [first_layer - 0.5:last_layer + 0.5]
  if (last_layer - first_layer <= 16) { set xtics 1 }
  plot for [i=1:3] level=(i == 1 ? 90 : i == 2 ? 95 : 99) csv skip 1 using (strcol(1) eq 'layer' && abs($2 - level) < 0.01 ? $3 + 0.08*(i - 2) : NaN):5:6 \
    with yerrorlines lt i title sprintf('%d %%', level)
  set lmargin at screen 0.565
  set rmargin at screen 0.985
  set xlabel 'KV head'
  unset ylabel
  set xrange [-0.5:last_head + 0.5]
  if (last_head <= 16) { set xtics 1 } else { set xtics autofreq }
  plot for [i=1:n] csv skip 1 using (strcol(1) eq 'kv_head' && abs($2 - 95) < 0.01 && $3 == int(word(layers, i)) ? $4 + 0.08*(i - (n + 1)/2.0) : NaN):5:6 \
    with yerrorlines lt i title 'layer '.word(layers, i)
  unset multiplot
}
