// A broken promise. Thrown by the laws and the audit; it ends the history of its seed.

export class Violation extends Error {
  override readonly name = "Violation";
}

export function demand(kept: boolean, broken: () => string): asserts kept {
  if (!kept) throw new Violation(broken());
}
