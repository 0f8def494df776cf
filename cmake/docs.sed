# Turns READMEs into Doxygen pages (sed -E). Doxygen only has pages for .md files and renames headings: a link to a
# heading becomes one to its page, and a link to another file or folder of the repository becomes text.
s/\]\(([^)]*\.md)#[^)]*\)/](\1)/g
s/\[([^]]*)\]\(#[^)]*\)/\1/g
s/\[([^]]+)\]\([^): ]*[^): d]\)/\1/g
