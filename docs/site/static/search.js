// Sphinx shows only pages that have every word of a question. People ask in sentences: here a page counts for each of
// the words that it has, the more the rarer the word is, and more for one in its title or headings.
if (typeof Search !== "undefined") {
  const IN_TITLE = 2, IN_HEADING = 2;
  const filesOf = (words, word) => [].concat(Object.hasOwn(words, word) ? words[word] : []);
  const stemsOf = (text) => {
    const stemmer = new Stemmer();
    return new Set(splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
  };

  // The heading of a page that says most of the question, as "#anchor".
  const anchorOf = (file, weights) => {
    let best = "", most = 0;
    for (const [heading, places] of Object.entries(Search._index.alltitles)) {
      for (const [where, id] of places) {
        if (where !== file || id === null) continue;
        const stems = stemsOf(heading);
        const weight = [...weights].reduce((sum, [word, each]) => sum + (stems.has(word) ? each : 0), 0);
        if (weight > most) [best, most] = [`#${id}`, weight];
      }
    }
    return best;
  };

  Search.performTermsSearch = (searchTerms, excludedTerms) => {
    const { terms, titleterms, titles, docnames, filenames } = Search._index;
    const inTitle = titles.map(stemsOf);
    const scores = new Map(), weights = new Map();
    let possible = 0;
    for (const word of searchTerms) {
      const headings = new Set(filesOf(titleterms, word));
      const files = new Set([...filesOf(terms, word), ...headings]);
      const weight = Math.log(1 + (titles.length - files.size + 0.5) / (files.size + 0.5));
      weights.set(word, weight);
      possible += weight * (1 + IN_HEADING + IN_TITLE);
      for (const file of files) {
        const times = 1 + (headings.has(file) ? IN_HEADING : 0) + (inTitle[file].has(word) ? IN_TITLE : 0);
        scores.set(file, (scores.get(file) ?? 0) + weight * times);
      }
    }
    for (const word of excludedTerms) {
      for (const file of [...filesOf(terms, word), ...filesOf(titleterms, word)]) scores.delete(file);
    }
    // The first of them below a name of the API that is the question.
    return [...scores].sort((a, b) => b[1] - a[1]).slice(0, 20).map(([file, score]) => [
      docnames[file], titles[file], anchorOf(file, weights), null, (10 * score) / possible, filenames[file],
      SearchResultKind.text,
    ]);
  };
}
