// Loads a contender's package, which is installed next to the scoreboard only. Each adapter says itself which part of it it uses, so
// that the repository can be checked without the packages.
export async function load<T>(name: string): Promise<T> {
  return (await import(name)) as T;
}
