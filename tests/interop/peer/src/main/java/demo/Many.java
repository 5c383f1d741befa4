package demo;

/** More classes than a byte has numbers: Marshalling and Kryo number those that they have named. */
public interface Many {

    enum E0 { A, B } enum E1 { A, B } enum E2 { A, B } enum E3 { A, B } enum E4 { A, B } enum E5 { A, B } enum E6 { A, B } enum E7 { A, B } enum E8 { A, B } enum E9 { A, B }
    enum E10 { A, B } enum E11 { A, B } enum E12 { A, B } enum E13 { A, B } enum E14 { A, B } enum E15 { A, B } enum E16 { A, B } enum E17 { A, B } enum E18 { A, B } enum E19 { A, B }
    enum E20 { A, B } enum E21 { A, B } enum E22 { A, B } enum E23 { A, B } enum E24 { A, B } enum E25 { A, B } enum E26 { A, B } enum E27 { A, B } enum E28 { A, B } enum E29 { A, B }
    enum E30 { A, B } enum E31 { A, B } enum E32 { A, B } enum E33 { A, B } enum E34 { A, B } enum E35 { A, B } enum E36 { A, B } enum E37 { A, B } enum E38 { A, B } enum E39 { A, B }
    enum E40 { A, B } enum E41 { A, B } enum E42 { A, B } enum E43 { A, B } enum E44 { A, B } enum E45 { A, B } enum E46 { A, B } enum E47 { A, B } enum E48 { A, B } enum E49 { A, B }
    enum E50 { A, B } enum E51 { A, B } enum E52 { A, B } enum E53 { A, B } enum E54 { A, B } enum E55 { A, B } enum E56 { A, B } enum E57 { A, B } enum E58 { A, B } enum E59 { A, B }
    enum E60 { A, B } enum E61 { A, B } enum E62 { A, B } enum E63 { A, B } enum E64 { A, B } enum E65 { A, B } enum E66 { A, B } enum E67 { A, B } enum E68 { A, B } enum E69 { A, B }
    enum E70 { A, B } enum E71 { A, B } enum E72 { A, B } enum E73 { A, B } enum E74 { A, B } enum E75 { A, B } enum E76 { A, B } enum E77 { A, B } enum E78 { A, B } enum E79 { A, B }
    enum E80 { A, B } enum E81 { A, B } enum E82 { A, B } enum E83 { A, B } enum E84 { A, B } enum E85 { A, B } enum E86 { A, B } enum E87 { A, B } enum E88 { A, B } enum E89 { A, B }
    enum E90 { A, B } enum E91 { A, B } enum E92 { A, B } enum E93 { A, B } enum E94 { A, B } enum E95 { A, B } enum E96 { A, B } enum E97 { A, B } enum E98 { A, B } enum E99 { A, B }
    enum E100 { A, B } enum E101 { A, B } enum E102 { A, B } enum E103 { A, B } enum E104 { A, B } enum E105 { A, B } enum E106 { A, B } enum E107 { A, B } enum E108 { A, B } enum E109 { A, B }
    enum E110 { A, B } enum E111 { A, B } enum E112 { A, B } enum E113 { A, B } enum E114 { A, B } enum E115 { A, B } enum E116 { A, B } enum E117 { A, B } enum E118 { A, B } enum E119 { A, B }
    enum E120 { A, B } enum E121 { A, B } enum E122 { A, B } enum E123 { A, B } enum E124 { A, B } enum E125 { A, B } enum E126 { A, B } enum E127 { A, B } enum E128 { A, B } enum E129 { A, B }
    enum E130 { A, B } enum E131 { A, B } enum E132 { A, B } enum E133 { A, B } enum E134 { A, B } enum E135 { A, B } enum E136 { A, B } enum E137 { A, B } enum E138 { A, B } enum E139 { A, B }
    enum E140 { A, B } enum E141 { A, B } enum E142 { A, B } enum E143 { A, B } enum E144 { A, B } enum E145 { A, B } enum E146 { A, B } enum E147 { A, B } enum E148 { A, B } enum E149 { A, B }
    enum E150 { A, B } enum E151 { A, B } enum E152 { A, B } enum E153 { A, B } enum E154 { A, B } enum E155 { A, B } enum E156 { A, B } enum E157 { A, B } enum E158 { A, B } enum E159 { A, B }
    enum E160 { A, B } enum E161 { A, B } enum E162 { A, B } enum E163 { A, B } enum E164 { A, B } enum E165 { A, B } enum E166 { A, B } enum E167 { A, B } enum E168 { A, B } enum E169 { A, B }
    enum E170 { A, B } enum E171 { A, B } enum E172 { A, B } enum E173 { A, B } enum E174 { A, B } enum E175 { A, B } enum E176 { A, B } enum E177 { A, B } enum E178 { A, B } enum E179 { A, B }
    enum E180 { A, B } enum E181 { A, B } enum E182 { A, B } enum E183 { A, B } enum E184 { A, B } enum E185 { A, B } enum E186 { A, B } enum E187 { A, B } enum E188 { A, B } enum E189 { A, B }
    enum E190 { A, B } enum E191 { A, B } enum E192 { A, B } enum E193 { A, B } enum E194 { A, B } enum E195 { A, B } enum E196 { A, B } enum E197 { A, B } enum E198 { A, B } enum E199 { A, B }
    enum E200 { A, B } enum E201 { A, B } enum E202 { A, B } enum E203 { A, B } enum E204 { A, B } enum E205 { A, B } enum E206 { A, B } enum E207 { A, B } enum E208 { A, B } enum E209 { A, B }
    enum E210 { A, B } enum E211 { A, B } enum E212 { A, B } enum E213 { A, B } enum E214 { A, B } enum E215 { A, B } enum E216 { A, B } enum E217 { A, B } enum E218 { A, B } enum E219 { A, B }
    enum E220 { A, B } enum E221 { A, B } enum E222 { A, B } enum E223 { A, B } enum E224 { A, B } enum E225 { A, B } enum E226 { A, B } enum E227 { A, B } enum E228 { A, B } enum E229 { A, B }
    enum E230 { A, B } enum E231 { A, B } enum E232 { A, B } enum E233 { A, B } enum E234 { A, B } enum E235 { A, B } enum E236 { A, B } enum E237 { A, B } enum E238 { A, B } enum E239 { A, B }
    enum E240 { A, B } enum E241 { A, B } enum E242 { A, B } enum E243 { A, B } enum E244 { A, B } enum E245 { A, B } enum E246 { A, B } enum E247 { A, B } enum E248 { A, B } enum E249 { A, B }
    enum E250 { A, B } enum E251 { A, B } enum E252 { A, B } enum E253 { A, B } enum E254 { A, B } enum E255 { A, B } enum E256 { A, B } enum E257 { A, B } enum E258 { A, B } enum E259 { A, B }
}
