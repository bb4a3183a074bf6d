# Quality against stored bytes. csv: series, cache_share, kl, _lo, _hi, top1_share, _lo, _hi, perplexity_ratio, _lo, _hi, fronts, rate_key, rate_value
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
do for [i=1:n] { found = 0; stats csv skip 1 using (tally(strcol(1) eq word(names, i))) nooutput; is_grid = is_grid.(found > 40 ? ' 1' : ' 0') }
rows = key_rows(5)
foot = (84 + 19.0*rows)/height
# More methods than colours (those of common.gp, as numbers): points and dashes change after every eight.
colour(i) = int(word('29362 13983232 40563 13400487 15113984 5682409 9071931 8355711', (i-1)%8+1))
shape(i) = int(word('7 5 9 11 13 4 6 8', ((i-1)+(i-1)/8)%8+1))
dash(i) = (i-1)/8+1
ring = 1.3
set logscale x
set xrange [*:1.25]
unset key
key_style = 'linespoints lc rgb colour(i) pt shape(i) ps 0.55 dt dash(i) lw 1'; key_points = 'points lc rgb colour(i) pt shape(i) ps 0.4'; key_font = ',11'
set multiplot
do for [c=1:3] {
  set lmargin at screen (c-1)*0.333 + 0.062
  set rmargin at screen c*0.333 - 0.012
  set tmargin at screen 1 - 39.0/height
  set bmargin at screen foot
  set title (c == 1 ? 'KL divergence, nats' : c == 2 ? 'top-1 accuracy / uncompressed' : 'perplexity / uncompressed') offset 0,-0.5
  set xlabel 'bytes stored / uncompressed' offset 0,0.3
  set xtics (0.02, 0.05, 0.1, 0.2, 0.5, 1)
  unset arrow
  if (c == 1) { set logscale y; set yrange [*:*]; set format y '%g' }
  if (c == 2) { unset logscale y; set yrange [0:1.1]; set format y '%g'; set arrow 1 from graph 0, first 0.99 to graph 1, first 0.99 nohead dt 2 lc rgb '#7f7f7f' lw 1.2 back }
  if (c == 3) { set logscale y; set yrange [0.95:20]; set ytics (1, 1.5, 2, 3, 5, 10, 20) }
  if (c != 3) { set ytics autofreq }
  k = 3*c
  bit = 2**(c-1)
  front(f) = (int(f)/bit)%2 == 1
  ok = 0
  stats csv skip 1 using ((c != 1 || column(k) > 0) && column(k) == column(k) ? count(0) : 0) nooutput
  if (ok > 0) {
    plot for [i=1:n] csv skip 1 using (line(i) && strcol(1) eq word(names, i) && (c == 2 || column(k) > 0) ? $2 : NaN):k with linespoints lc rgb colour(i) pt shape(i) ps 0.55 dt dash(i) lw 1, \
         for [i=1:n] csv skip 1 using (!line(i) && strcol(1) eq word(names, i) && (c == 2 || column(k) > 0) ? $2 : NaN):k with points lc rgb colour(i) pt shape(i) ps 0.4, \
         csv skip 1 using (front($12) && (c == 2 || column(k) > 0) ? $2 : NaN):k+1:(0):(column(k+2) - column(k+1)) with vectors nohead lc rgb '#000000' lw 0.9 notitle, \
         csv skip 1 using (front($12) && (c == 2 || column(k) > 0) ? $2 : NaN):k with points pt 6 ps ring lc rgb '#000000' lw 1.2 notitle
  } else {
    unset logscale
    set label 9 'no values to draw' at graph 0.5, graph 0.5 center
    plot [0:1] [0:1] NaN notitle
    unset label 9
  }
}
@key_below
unset multiplot
