// "Did you mean ...?": the known name that a mistyped one is nearest to.

/** The known name with the fewest letters to change. */
export function closest(name: string, known: readonly string[]): string {
  const last = name.split(".").at(-1)!;
  const distance = (candidate: string): number =>
    Math.min(edits(name, candidate), edits(last, candidate.split(".").at(-1)!));
  return known.toSorted((a, b) => distance(a) - distance(b))[0]!;
}

function edits(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length]!;
}
