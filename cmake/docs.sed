# READMEs as pages of Doxygen (sed -E). It has pages for .md files only and names headings in its own way: a link to a heading
# goes to its page, and a link to another file or folder of the repository becomes text.
s/\]\(([^)]*\.md)#[^)]*\)/](\1)/g
s/\[([^]]*)\]\(#[^)]*\)/\1/g
s/\[([^]]+)\]\([^): ]*[^): d]\)/\1/g
