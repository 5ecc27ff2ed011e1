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
untouched, is missed: the move stays as it was. Not tried: several prototypes for a label, a step or a sharpness for
each. Figures of those trials, not made by the script above."""

NOTE = """The tail is measured without knowing which documents belong to a label, so it is as good as the guess of
that. Where labels or groups match poorly what their documents are (clinc_domains; refined: trec with mpnet), foreign
documents are taken for own ones and the threshold is too generous, up to 2.3 times. Where groups lie far apart and are
right (dbpedia), it is too strict, down to half. For a promise that must hold, use labels as given, and look at some
documents near the threshold.

What the guess stands on was chosen on the six sets, the best of about 35 variants and constants there, and then tried
once on the four untouched: held there on 8 of 12 pairs with labels as given (7 before; 9 in the table above, whose
thresholds lie between knots) and on 4 of 12 refined (4 before). So the gain in pairs that hold is shown on the sets
that it was chosen on, where it flatters; on the untouched ones it is small or nothing. The figures below are from those
trials, not made by the script above.

| what is known of own documents, six sets | labels as given: pairs of 18 | refined: pairs of 18 |
| :-- | --: | --: |
| the truth; refined: z from the other half's labels | 18 | 17 |
| the truth; refined: z from the same documents | 18 | 10 |
| softmax of both z's sum (before) | 14 | 7 |
| the same, refined z from other documents, quarters | 15 | 11 |
| now: refined z from the other half, t = 1.7 or less by agreement | 17 | 16 |
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
16). The last, tried once on the four, holds on 8 of 12 and 4 of 12 there, as what stands: not taken. What is missing
is how often the groups are wrong; halves that agree share their errors."""

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
