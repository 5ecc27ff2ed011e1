"""What benchmarks/accuracy.py writes into its page as it stands here: what was tried once, by hand."""

INTRODUCTION = """# Accuracy without labels

Made by

```
python benchmarks/accuracy.py --data DIR --encoders DIR --cache DIR --out docs/accuracy.md
```

Every method sees the texts and the label names in the template "this matter is {}", nothing else; the ensemble is the
set's own documents, the surprise weight is 1. minilm is all-MiniLM-L6-v2, mpnet is all-mpnet-base-v2 (at most 2,000
documents of each set), e5-small-4bit is multilingual-e5-small with its weights stored in 4 bit, with "query: " before
texts and labels. Intervals are 95 %, bootstrap over documents (1,000 draws; 200 for F1). "refined" is 10 rounds
always; "auto" decides for itself. The move, its constants and the limits of "auto" were chosen on six sets; the four
others (clinc_domains, dbpedia, imdb, reddit30) were fixed as untouched before any figure was seen and tried once the
choice was made. clinc_domains has the texts of clinc150 with other labels, and the Reddit sets come from one source,
so they are untouched in their labels alone; dbpedia and imdb are new in both. The two constants of the tail estimator
were chosen on the six; an earlier form of it had been chosen with all sets in view.
"""

TRIED = """## Better moves tried

A ridge classifier trained on the true labels of half of the documents is right on the other half 9.8 points more often
than `refine="auto"` (six sets, three encoders, at most 2,000 documents of each): there is something to gain. Without
labels, about 120 variants and constants were tried on these 18 pairs. Gain over `refine="auto"` as it is, with its
number of rounds:

| move | mean | worst pair |
| :-- | --: | --: |
| shares of the 10 nearest documents averaged with a document's own, at the end | +0.4 | -0.5 |
| z of the 10 nearest documents averaged with a document's own, in every round | -0.6 | -5.3 |
| mixture with one damped covariance, by EM from the refined labels | +0.1 | -1.4 |
| softmax regression on its own sharpened shares, from the refined labels | +0.0 | -0.1 |
| mutual information of documents and shares maximised, from there | +0.1 | -0.3 |
| shares drawn towards equally large labels (Sinkhorn, weakly) | +0.4 | -0.4 |
| shares weighted by the labels' frequencies | -0.2 | -1.3 |
| the name damped like its documents | +0.2 | -1.4 |
| labels refined on halves averaged with those of the whole | -0.2 | -1.1 |
| documents weighted by s^2 in place of s | +0.3 | -0.8 |
| a = 0.2 | +0.5 | -1.4 |
| R from the scatter within the labels' groups in place of C, r = 3 | -0.2 | -1.6 |
| these three at once | +1.2 | -0.2 |
| the same with f = 1 | +1.6 | -0.2 |

The last is better by more than chance on 11 of the 18 pairs and worse on none, but at the price of 0.9 points with 60
documents and 1.3 where half of the labels have no documents. The one before it costs 0.2 there, and gains 1.3 with all
documents. It alone was then tried, once, on the four untouched sets: +0.1 in the mean of 12 pairs (-1.1 to +1.6; by
more than chance worse on four and better on three); and on 20 and 50 other Reddit groups: +0.5 in the mean of 5 pairs
(+0.1 to +0.9, none beyond chance). So most of the gain was fitted to the six sets, and what was asked for, 0.7 on the
untouched, is missed: the move stays as it was.

Then about 300 more, of kinds that move more than one vector, on the same 18 pairs and on six with coarser labels made
for this (banking77 in 8, 28 to 72 Reddit groups in 13). Groups are k-means of the centred unit documents:

| move | 18 pairs | worst pair | coarser labels |
| :-- | --: | --: | --: |
| in rounds 1 to 3 the mean z of a group for that of its documents, 4 groups for each label | -1.1 | -6.2 | -3.1 |
| the same, 10 groups for each label | -1.4 | -7.1 | -0.3 |
| groups' mean shares, up to 10 groups for each label, averaged with a document's own at the end | +0.2 | -0.5 | +0.8 |
| up to 2 vectors for each label, of groups of its own documents, larger z averaged with the one | +0.1 | -1.6 | +0.8 |
| the same, up to 4 vectors | -0.2 | -2.0 | +0.0 |
| shares averaged with those of the 10 nearest documents in every round, mutual ones only | +0.0 | -2.9 | |
| the same 5 times in each round, weight 0.9, all nearest | -3.5 | -19.0 | |
| at the end only, once, weight 0.5 | +0.4 | -0.5 | +1.2 |
| ridge regression on the shares at the end, penalty c | +0.4 | -0.5 | +0.3 |
| the same on the surest half of each label's documents | +0.1 | -1.4 | |
| 1 - a of each label: 0.9 by how far its documents are the same from either half | +0.2 | -3.2 | |
| vectors of other groups where they raise the log-sum-exp of t z, in three sweeps | +0.2 | -4.0 | |
| best of 12 random starts by the log-sum-exp of t z | -0.2 | -4.7 | |
| shares of equally large labels in rounds 1 to 5 | +0.3 | -1.9 | -0.5 |
| the same with a = 0.2, where that raises the scatter between groups | +1.0 | -1.8 | +0.7 |
| five templates averaged / refined apart and averaged | +0.0 / -0.1 | -4.5 / -5.0 | |
| five more rounds with a = 0.2 where the halves agree on 85 % | +0.6 | 0.0 | +0.3 |

Equally large labels gain 2 to 4 points on clinc150, whose labels are equally large, and cost 5 where half of the labels
have no documents and 2 where they are unbalanced, also with the choice by scatter. Whether the halves name groups alike
tells no better where refinement loses than whether they label documents alike: over 92 pairs and ensembles like those
above, 14 of which lose more than a point, AUROC 0.59 and 0.61. The last move, the safest of those that gain, was tried
once on the four sets not chosen on: +0.1 in the mean of 12 pairs (-0.7 to +0.8), and +0.4 with the nearest documents'
shares at the end (-0.4 to +1.1), which would keep the documents and is no linear layer. Both miss the point asked for.

Where the rest is, percent, mean of three encoders (at most 5,000 documents). ridge: trained on the true labels of three
quarters. names lost: of its lead over "auto", points on documents of labels that find fewer than 30 % of their own.
swapped: points that the best one-to-one renaming of the groups gains. from the truth: 10 rounds from the true means of
the same documents. groups: 4 for each label, at least 20 documents in each on average, named by surprise, and by the
truth of half of their documents (right on the other half).

| set | auto | ridge | names lost | swapped | from the truth | groups by surprise | groups by truth |
| :-- | --: | --: | --: | --: | --: | --: | --: |
| ag_news | 85.4 | 89.0 | 0.0 | 0.0 | 86.3 | 76.6 | 84.0 |
| banking77 | 66.9 | 81.2 | 5.5 | 0.7 | 73.5 | 55.0 | 65.3 |
| clinc150 | 75.4 | 88.4 | 7.5 | 3.2 | 86.8 | 58.5 | 67.1 |
| clinc_domains | 47.0 | 92.4 | 31.1 | 11.9 | 70.9 | 43.2 | 72.4 |
| dbpedia | 93.3 | 95.3 | 0.0 | 0.0 | 93.4 | 82.9 | 89.2 |
| imdb | 79.1 | 84.6 | 0.0 | 0.0 | 81.3 | 71.3 | 73.8 |
| reddit12 | 70.9 | 75.4 | 0.0 | 0.0 | 71.5 | 60.8 | 63.2 |
| reddit30 | 61.8 | 71.8 | 5.0 | 2.2 | 68.3 | 52.2 | 58.1 |
| sst2 | 80.9 | 84.6 | 0.0 | 0.0 | 82.1 | 68.9 | 76.0 |
| trec | 46.8 | 83.9 | 26.1 | 6.6 | 62.4 | 39.8 | 56.3 |

On ag_news, dbpedia, imdb, reddit12 and sst2 no label is lost, the move started from the truth ends within 2.2 points of
where it ends now, and groups with the right names are 1 to 8 points behind "auto": they mix the labels.
There the rest is boundaries that groups don't show. Labels lost to another are four to six tenths of it on banking77,
clinc150 and reddit30, and two thirds on clinc_domains and trec. Their names say something else than what their
documents share: those of "get physical card" ask for a PIN, Reddit's "spam" and "wow" are taken for each other, as are
"utility" and "home", "entity" and "human". Groups of the last two sets could be right for 56 to 72 %, but surprise
names them no better than single documents. A description (below) or a few examples (training.md) would say what the
name doesn't. Figures of those trials, not made by the script above."""

NOTE = """The tail is measured without knowing which documents belong to a label, so it is as good as the guess of that.
With labels as given it misses where groups lie far apart and are right (dbpedia): too strict, down to two thirds.
Refined, it is too generous where groups match poorly what they are called (clinc_domains, trec with mpnet), up to 2.9
times, and too strict on dbpedia, down to half, and imdb. For a promise that must hold, use labels as given, and look at
some documents near the threshold.

With labels as given, how sure the guess may be depends on two things. One is how often labels refined on either half
of the documents agree (A, its square). Alone it held on 25 of these 30 pairs, and on 12 of the 15 of the next section:
documents that no label means come together all the same, and both halves agree on them. But these groups then set apart
much more of the scatter than the names did (S: 1.4 to 5 times there, 1.0 to 1.9 times here, 2.5 on sentiment). So what
A is beyond chance is divided by S. Tried with all sets in view, the untouched too; the last column is the RMS of the
natural logarithm of seen / promised on 63 more pairs of documents and labels of another set, at most 2,000 documents:

| what is beyond chance is | of these 30 | of the next 15 | 63 more |
| :-- | --: | --: | --: |
| taken as it is (before) | 25 | 12 | 0.34 |
| nothing where S is above 2.5 | 25 | 15 | 0.30 |
| divided by S^0.7 | 26 | 15 | 0.27 |
| divided by S (now) | 28 | 15 | 0.24 |
| divided by S, and chance with it | 26 | 15 | 0.17 |
| divided by S^1.3 | 28 | 15 | 0.21 |
| divided by S^2 | 23 | 15 | 0.17 |
| nothing at all (every document counts as foreign) | 6 | 15 | 0.14 |

Refined labels are their groups, whatever these are called: dividing by S would make 14 of 30 out of 20, since the
threshold becomes too strict. But where S is above 2, hardly any name stands for its group, and then every document
counts as foreign: 18 of 30 (imdb is lost, with MiniLM and mpnet: far too strict) and 8 of the next 15 instead of 3,
above all in what the others see: news labels refined on bank questions accepted 4.4 to 6.3 %, and now 0.9 to 1.3; on
CLINC150 9.0 and 4.7 %, now 1.0, but for mpnet, where S is 1.8, 5.1 %. From 2.2 on: 19 and 8; less and less from 1.5 to
2: 15 and 8, 1.8 % for mpnet.

What A stands on was chosen earlier, on the six sets, the best of about 35 variants and constants there, and then tried
once on the four untouched: held there on 8 of 12 pairs with labels as given (7 before) and on 4 of 12 refined (4
before). So the gain in pairs that hold is shown on the sets that it was chosen on, where it flatters; on the untouched
ones it is small or nothing. The figures below are from those trials, not made by the script above.

| what is known of own documents, six sets | labels as given: pairs of 18 | refined: pairs of 18 |
| :-- | --: | --: |
| the truth; refined: z from the other half's labels | 18 | 17 |
| the truth; refined: z from the same documents | 18 | 10 |
| softmax of both z's sum (before) | 14 | 7 |
| the same, refined z from other documents, quarters | 15 | 11 |
| refined z from the other half, t = 1.7 or less by agreement | 17 | 16 |
| mixture of normals in z by EM, 3 rounds | 11 | 1 |

The truth passes on every pair with labels as given, so the measure can be met: its interval, over documents with all
labels of one kept together, is not too narrow (the labels are those of the user, not a sample). Refined labels have
moved towards their own documents, the wrong ones too; with those documents even the truth does not keep the promise.
With labels as given, also tried: normal fitted to the lower half (5 of 18), to the central quantiles (5), median and
upper quartile (8), a mixture of two normals for each label (3), all documents whose best label is another (9), a
generalised Pareto tail on the guess as it is now (17: no gain over counting).

Tried later, on the six: t without its limit, or by the cube of the agreement, which is nearer to the accuracy of the
refined labels than its square (labels as given 17 of 18, refined 9 to 15); the groups' likelihood in place of z (16 to
17, 7 to 13); weights by label frequency (17, 15); a share of each document spread over all labels (12 to 17, 6 to 12);
refined z less 0.3 of the name's own, t at most 2.2, so that what is sought does not depend on what is measured (18,
16). The last, tried once on the four, holds on 8 of 12 and 4 of 12 there, as what stands: not taken. What is missing of
refined labels is how often the groups are wrong; halves that agree share their errors."""

STRAYS_NOTE = """Of the best label's share of a document, 1/m is chance and counts for nothing; before, all of it
counted, and only the agreement of halves limited it. On the same sets and halves of labels, at most 2,000 documents and
two splits, 4.2 and 27.7 % were taken then on average (AG News with MiniLM: 26 and 85); with the scatter asked too 1.4
and 15.8, without chance 1.1 and 12.2. On 45 pairs of documents and labels of another set: 4.1 and 23, 2.0 and 15.6, 1.5
and 12.1. How well `accept` tells both kinds apart is the same (AUROC 0.68 on average). The price is that fewer of the
labels' own documents reach a level, most on AG News: of these, with MiniLM, 44 % reach 0.9 where 68 did."""

OUTSIDE_NOTE = """Before, `accept` was the best z less the strangeness of the document: AUROC 0.643 (labels as given)
and 0.682 (refined) for Reddit titles against bank questions with E5, below the 0.718 of softmax. There bank questions
lie in the middle of the titles by every distance (Mahalanobis 0.49, nearest neighbours in the whitened space 0.57 at
most), and only names (z: 0.74) and groups (gain over the whole ensemble: 0.76) tell them; elsewhere the distance tells
most. So each of the three gives a P value and Fisher's sum joins them, for each label (`surprise_hf.kinship`). It was
chosen on half of 234 cells (these ten sets against nine of another kind, three encoders, 800 documents of each), among
211 weights of five such values in Fisher's sum and in a plain one, by what it falls short of the better of cosine and
softmax, summed over cells; then tried on the other half. The table's sets are in both halves, and that all three are of
one label, not each of its best, was chosen with the table in view. Figures of those trials, not made by the script
above:

| cells | score | mean AUROC | mean lead | cells below | sum of shortfalls | worst |
| :-- | :-- | --: | --: | --: | --: | --: |
| chosen on, 114 | before, labels as given | 0.892 | +0.146 | 8 | 0.34 | -0.126 |
| chosen on, 114 | before, refined | 0.919 | +0.173 | 3 | 0.22 | -0.080 |
| chosen on, 114 | now | 0.910 | +0.164 | 4 | 0.08 | -0.058 |
| untouched, 120 | before, labels as given | 0.900 | +0.151 | 8 | 0.34 | -0.129 |
| untouched, 120 | before, refined | 0.932 | +0.183 | 4 | 0.12 | -0.057 |
| untouched, 120 | now | 0.924 | +0.175 | 3 | 0.06 | -0.026 |

The distance alone would have the largest mean (0.93), and loses where it is blind, by up to 0.23 in the table's
cells."""
