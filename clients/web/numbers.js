/* Texts about the numbers of explanations: their meaning and its limits. */
import {element} from './dom.js';

const EXPLANATION = [
	['Contributions', 'The signed parts that the tokens have in the score of this prediction, relative to the model\u2019s other options or as the target says, in logits. They sum to the score exactly, with norms, attention weights and gates held fixed as they are for this text. A gate\u2019s product is credited half to each factor by convention. They are not the effect of removing a token, and they are never scaled to sum to 1. The reader is the last token, or for an encoder the token at the position: much of its part comes through its own path, so it is listed apart, and the scale of colours leaves it out.'],
	['Weights \u03b1', 'How the model\u2019s attention pooled the tokens: shares that are never negative and sum to 100 % in each row. In the architecture additive they are the same for every reader, and with windows mostly the shape of the windows. They are not the reason why this token was predicted.'],
	['Half-life', 'In additive2 a head forgets: each later token takes away a part of the weight of those before it. The half-life is the number of tokens after which half of a token\u2019s weight is gone, at the mean rate of the tokens up to the position. Heads with a short one see the latest tokens alone. With \u221e nothing is forgotten.'],
	['Other methods', 'Signed numbers for comparison, none of them the truth. gradient_x_input: the slope of the score times the token\u2019s vector. attention_x_gradient: the weights times the gradient of what they pool; it ignores the last token\u2019s own path. integrated_gradients: slopes on the way from a baseline (vectors of zero, or their mean), which sum to the difference of the two scores, except for the completeness error. leave_one_out: the score minus that without the token, which is masked or replaced; the model was not trained for such texts.'],
];

const COMPARISON = [['Differences', 'The number that a token has in the second explanation minus that in the first, for the tokens that both texts have in the same order. Both explanations and the differences have one scale of colours. A reader\u2019s number is compared with that of the other reader only, and the scale leaves both out. Where the two explain different outputs, a difference is one between answers to different questions. It is not the effect of changing the text on a token. Tokens without a difference are listed apart.']];

const FAITHFULNESS = [
	['How they are made', 'Tokens are removed from a text in the order in which a method ranks them. The model\u2019s log-probability of its own likeliest token, or of the target, is then compared with that for the whole text. All numbers are differences of log-probabilities in nats unless a unit is named. Signed numbers are ranked with their sign, the largest first. Intervals come from a bootstrap over whole texts, or over the positions of a single text: they show how much the mean depends on the chosen texts, and nothing about other models or other kinds of texts.'],
	['Comprehensiveness', 'The log-probability of the text minus that without the first part of the tokens. It is high when the tokens that a method ranks first were needed. It also rewards a method for removing tokens that argued for other options.'],
	['Sufficiency', 'The log-probability of the text minus that with the first part of the tokens alone. It is low when these suffice. It can be negative, as such texts are unlike those that the model was trained on.'],
	['Deletion and insertion', 'The mean of the log-probability along the curve from the whole text to none of it (lower is better), and from none to the whole (higher is better). They are the areas below the two kinds of curves above.'],
	['Normalised AOPC', 'The area over the deletion curve, as its place between those of the worst and the best order that were evaluated here, reversed ones and baselines included: 0 is the worst order known, 1 the best. Better orders may exist.'],
	['Kendall\u2019s \u03c4', 'How well a method\u2019s numbers agree in order with the fall of the log-probability when each token alone is removed: 1 is the same order, 0 none, \u22121 the reverse. It measures agreement with another method, leave-one-out, which is not the truth either.'],
	['Soft comprehensiveness and sufficiency', 'The same differences, where each token is removed, or kept, by chance in proportion to the size of its number. They depend on sizes, not only on an order, and ignore signs.'],
	['Far drop', 'The fall of the log-probability without the first of the tokens that are far from the reader. The latest tokens of a text matter most, so the other numbers hardly separate a method from one that ranks by recency; this one does.'],
	['Baselines', 'random is a seeded random order, and recency puts the token nearest to the reader first. A method is informative only where it is better than both, and better than its own order reversed.'],
	['What they are not', 'Removing a token makes a text on which the model was not trained, so no number here is the effect that the token had. A token that is masked cannot be read by others, but the reader, the last token or the mask, keeps its own path; it is in no ranking and is never removed. Masking and replacing tokens give different numbers, and neither is the truth. A method that is faithful here explains what the model computed, not whether the model is right.'],
];

/** "What the numbers are", folded. kind: explanation, comparison or faithfulness. */
export function aboutNumbers(kind) {
	const rows = kind === 'faithfulness' ? FAITHFULNESS : kind === 'comparison' ? [...COMPARISON, ...EXPLANATION] : EXPLANATION;
	return element('details', {class: 'about'}, element('summary', {}, 'What the numbers are'), element('dl', {}, rows.map(([name, text]) => [element('dt', {}, name), element('dd', {}, text)])));
}
