/** A sorted copy: numbers by size, text by letters, nothing always last. Equal ones keep their order. */
export function sorted<T>(items: T[], key: (item: T) => string | number | null, down = false): T[] {
  const sign = down ? -1 : 1;
  return [...items].sort((left, right) => {
    const [a, b] = [key(left), key(right)];
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b));
  });
}
